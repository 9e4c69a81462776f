"""Hugging Face saves hold every exported tensor, whatever else of the source was not exported.

The kind: half of an upstream change was backported (verl's ``mtp_num_layers=None``, without Bridge's counting out of
MTP tensors), and a writer drops what it was given because something else is missing.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from support import build_model, build_provider
from support.versions import BRIDGE

HERE = Path(__file__).parent
OTHER = Path(sys.prefix) / "other"  # where tox puts further verl releases
INDEX = "model.safetensors.index.json"


def shard(origin, folder, extra, *, single=False):
    """A copy of a checkpoint in two files (or one), with further tensors in the second."""
    shutil.copytree(origin, folder)
    state = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    if single:
        save_file({**state, **extra}, folder / "model.safetensors", {"format": "pt"})
        return set(state)
    late = {name for name in state if name.startswith(("model.layers.2.", "model.layers.3."))}
    parts = [{n: state[n] for n in state if n not in late}, {**{n: state[n] for n in late}, **extra}]
    place = {}
    for number, part in enumerate(parts, 1):
        file = f"model-{number:05d}-of-00002.safetensors"
        save_file(part, folder / file, {"format": "pt"})
        place.update(dict.fromkeys(part, file))
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": place}))
    return set(state)


def on_disk(folder):
    found = {}
    for file in Path(folder).glob("*.safetensors"):
        with safe_open(file, "pt") as opened:
            found.update(dict.fromkeys(opened.keys(), file.name))
    return found


def index(folder):
    return json.loads((Path(folder) / INDEX).read_text())


def loaded(source):
    bridge, provider = build_provider(source)
    model = build_model(provider)
    bridge.load_hf_weights(model)
    return bridge, model


@pytest.fixture
def tower(dense_checkpoint, tmp_path):
    """A source with one tensor that this model has no parameter for."""
    names = shard(dense_checkpoint, tmp_path / "source", {"visual.patch_embed.weight": torch.ones(2, 2)})
    return tmp_path / "source", names


def test_strict_raises_and_names_what_is_missing_and_keeps_the_rest(tower, tmp_path):
    source, names = tower
    bridge, model = loaded(source)
    with pytest.raises(RuntimeError, match=r"\d+ .*tensors .* were not"):
        bridge.save_hf_weights(model, tmp_path / "out", show_progress=False)
    if not str(BRIDGE).startswith("0.6"):  # 0.6 raises before it writes the rest
        assert set(on_disk(tmp_path / "out")) == names
        assert index(tmp_path / "out")["weight_map"] == on_disk(tmp_path / "out")


@pytest.mark.parametrize("distributed", [False, True])
def test_not_strict_writes_everything_and_indexes_what_is_there(tower, tmp_path, distributed):
    source, names = tower
    bridge, model = loaded(source)
    if distributed and str(BRIDGE).startswith("0.3"):
        pytest.skip("Bridge 0.3 has no distributed save")
    kwargs = {"distributed_save": True} if distributed else {}
    bridge.save_hf_weights(model, tmp_path / "out", show_progress=False, strict=False, **kwargs)
    disk = on_disk(tmp_path / "out")
    assert set(disk) == names
    assert index(tmp_path / "out")["weight_map"] == disk
    size = sum(
        tensor.numel() * 4 for file in (tmp_path / "out").glob("*.safetensors") for tensor in load_file(file).values()
    )
    assert index(tmp_path / "out")["metadata"]["total_size"] == size


def test_a_source_of_one_file_is_not_lost_for_one_tensor(dense_checkpoint, tmp_path):
    names = shard(dense_checkpoint, tmp_path / "source", {"visual.x": torch.ones(2)}, single=True)
    bridge, model = loaded(tmp_path / "source")
    bridge.save_hf_weights(model, tmp_path / "out", show_progress=False, strict=False)
    assert set(on_disk(tmp_path / "out")) == names


def test_a_complete_save_is_byte_for_byte_bridges_own(dense_checkpoint, tmp_path):
    """Nothing that works is changed: files and index as without us."""
    from megatron.bridge.models.hf_pretrained.state import SafeTensorsStateSource

    names = shard(dense_checkpoint, tmp_path / "source", {})
    bridge, model = loaded(tmp_path / "source")
    bridge.save_hf_weights(model, tmp_path / "ours", show_progress=False)
    bare = SafeTensorsStateSource.save_generator
    while hasattr(bare, "__verl_compat__"):
        bare = bare.__wrapped__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SafeTensorsStateSource, "save_generator", bare)
        bridge.save_hf_weights(model, tmp_path / "alone", show_progress=False)
    assert set(on_disk(tmp_path / "ours")) == names
    ours, alone = tmp_path / "ours", tmp_path / "alone"
    assert sorted(file.name for file in ours.iterdir()) == sorted(file.name for file in alone.iterdir())
    for file in alone.glob("*.safetensors"):
        assert file.read_bytes() == (ours / file.name).read_bytes()
    assert index(ours) == index(alone)


@pytest.mark.parametrize("release", ["installed", *sorted(folder.name for folder in OTHER.glob("verl-*"))])
def test_mtp_switched_off_costs_no_other_tensor(release, dense_checkpoint, tmp_path):
    """`bridge_lt_0_6_save_every_tensor`, `verl_lt_0_9_mtp_disabled`: exported names, files and index are one set."""
    source = tmp_path / "source"
    names = shard(dense_checkpoint, source, {"mtp.fc.weight": torch.zeros(4, 4)})
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, "mtp_num_hidden_layers": 1}))
    path = [str(HERE.parent / "stubs")]
    if release != "installed":
        path.insert(0, str(OTHER / release))
    done = subprocess.run(
        [sys.executable, str(HERE / "mtp_save.py"), str(source), str(tmp_path / "out")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert release in ("installed", f"verl-{told['verl']}")
    assert not told["mtp"]
    assert set(told["exported"]) == names
    assert {name for file in told["files"].values() for name in file} == names
    assert {name: file for file, there in told["files"].items() for name in there} == told["index"]
