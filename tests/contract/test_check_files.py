"""Checks of saves and loads on real Bridge releases: loud where something is lost, silent where nothing is.

The kind: a save or a load that goes wrong without an exception, and is found out by whoever loads the result.
"""

import contextlib
import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from support import build_model, build_provider
from verl_compat import integrity
from verl_compat.log import _said
from verl_compat.state import STATE


@pytest.fixture(autouse=True)
def fresh():
    integrity.forget()
    _said.clear()


@pytest.fixture
def said(caplog):
    with caplog.at_level("WARNING", logger="verl_compat"):
        yield lambda: [record.getMessage() for record in caplog.records if "check_hf" in record.getMessage()]


@pytest.fixture(params=["dense", "moe"])
def source(request, tmp_path):
    """A sharded checkpoint: four layers, each in a file of its own, and an index."""
    origin = request.getfixturevalue(f"{request.param}_checkpoint")
    folder = tmp_path / "source"
    shutil.copytree(origin, folder)
    state = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    place = {}
    for name in state:
        layer = int(name.split(".")[2]) if ".layers." in name else 0
        place[name] = f"model-{layer + 1:05d}-of-00004.safetensors"
    for file in set(place.values()):
        save_file({name: tensor for name, tensor in state.items() if place[name] == file}, folder / file)
    index = {"metadata": {}, "weight_map": place}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def load(folder):
    bridge, provider = build_provider(folder)
    model = build_model(provider)
    bridge.load_hf_weights(model)
    return bridge, model


def adapter_is_on():
    return STATE.entries["check_hf_save"].outcome == "applied"


def test_a_complete_load_and_save_say_nothing(source, tmp_path, said):
    bridge, model = load(source)
    bridge.save_hf_weights(model, tmp_path / "out", show_progress=False)
    assert adapter_is_on()
    assert said() == []
    found = integrity.results()
    total = len(json.loads((source / "model.safetensors.index.json").read_text())["weight_map"])
    assert (found["check_hf_save"]["exported"], found["check_hf_save"]["on_disk"]) == (total, total)
    assert (found["check_hf_load"]["nothing_consumed"], found["check_hf_load"]["nothing_filled"]) == ([], [])
    assert found["check_hf_load"]["checkpoint"] == total
    assert "checkpoint: complete" in integrity.summary_line()


def test_a_tensor_lost_between_export_and_disk_is_an_error_after_the_save(source, tmp_path):
    bridge, model = load(source)
    out = tmp_path / "out"
    with pytest.MonkeyPatch.context() as patch:
        import safetensors.torch

        kept = safetensors.torch.save_file

        def forgetful(tensors, file, *args, **kwargs):
            tensors = dict(tensors)
            tensors.pop("model.layers.1.input_layernorm.weight", None)
            return kept(tensors, file, *args, **kwargs)

        patch.setattr(safetensors.torch, "save_file", forgetful)
        with pytest.raises(integrity.IntegrityError, match=r"1 tensors .* in no file: model\.layers\.1\."):
            bridge.save_hf_weights(model, out, show_progress=False)
    on_disk = {name for file in out.glob("*.safetensors") for name in load_file(file)}
    assert "model.layers.3.input_layernorm.weight" in on_disk  # the save went on to its end before
    assert integrity.results()["check_hf_save"]["lost"] == ["model.layers.1.input_layernorm.weight"]


def test_another_dtype_or_shape_on_disk_is_an_error(source, tmp_path):
    bridge, model = load(source)
    with pytest.MonkeyPatch.context() as patch:
        import safetensors.torch

        kept = safetensors.torch.save_file

        def rounding(tensors, file, *args, **kwargs):
            return kept({name: tensor.to(torch.bfloat16) for name, tensor in tensors.items()}, file, *args, **kwargs)

        patch.setattr(safetensors.torch, "save_file", rounding)
        with pytest.raises(integrity.IntegrityError, match="differ from what was exported.*F32 -> .*BF16"):
            bridge.save_hf_weights(model, tmp_path / "out", show_progress=False)


def test_what_the_model_is_built_without_is_said_once_at_load_and_once_at_save(source, tmp_path, said):
    """A source that has more than the model (here a tower that Bridge has no mapping for)."""
    file = source / "model-00004-of-00004.safetensors"
    save_file({**load_file(file), "visual.patch_embed.weight": torch.ones(2, 2)}, file)
    index = json.loads((source / "model.safetensors.index.json").read_text())
    index["weight_map"]["visual.patch_embed.weight"] = file.name
    (source / "model.safetensors.index.json").write_text(json.dumps(index))
    bridge, model = load(source)
    for _ in range(2):
        with contextlib.suppress(integrity.IntegrityError):  # where the release's own save leaves the whole file out
            bridge.save_hf_weights(model, tmp_path / "out", show_progress=False, strict=False)
    lines = said()
    assert sum("were read by nothing: visual.patch_embed.weight" in line for line in lines) == 1
    assert integrity.results()["check_hf_load"]["nothing_consumed"] == ["visual.patch_embed.weight"]
    assert integrity.results()["check_hf_save"]["not_exported"] == ["visual.patch_embed.weight"]


def test_a_parameter_that_no_task_fills_is_named(dense_checkpoint, said):
    """Seen from outside Bridge: the task list loses one entry on its way to the loop that copies."""
    from megatron.bridge.models.conversion.model_bridge import MegatronModelBridge

    bridge, provider = build_provider(dense_checkpoint)
    model = build_model(provider)
    kept = MegatronModelBridge.build_conversion_tasks

    def shorter(self, *args, **kwargs):
        tasks = kept(self, *args, **kwargs)
        return [task for task in tasks if "final_layernorm" not in task.param_name]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MegatronModelBridge, "build_conversion_tasks", shorter)
        bridge.load_hf_weights(model)
    assert integrity.results()["check_hf_load"]["nothing_filled"] == ["decoder.final_layernorm.weight"]
    assert any("1 parameters were not filled" in line for line in said())
    assert integrity.results()["check_hf_load"]["nothing_consumed"] == ["model.norm.weight"]


def test_tied_embeddings_are_no_finding(tmp_path, said):
    from support import write_tiny_checkpoint

    folder = write_tiny_checkpoint(tmp_path / "tied", "qwen3", tie_word_embeddings=True)
    bridge, model = load(folder)
    bridge.save_hf_weights(model, tmp_path / "out", show_progress=False)
    assert said() == []


def test_a_fault_of_the_check_stops_nothing(source, tmp_path, said):
    bridge, model = load(source)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("verl_compat.shims.check.saved.read_folder", lambda *args: 1 / 0)
        entry = STATE.entries["check_hf_save"]
        try:
            bridge.save_hf_weights(model, tmp_path / "out", show_progress=False)
            assert STATE.entries["check_hf_save"].outcome == "failed"
            assert [line for line in said() if "ZeroDivisionError" in line and "the run goes on" in line]
        finally:
            STATE.record(entry)


def test_strict_mode_makes_a_warning_an_error(dense_checkpoint):
    from dataclasses import replace

    before = STATE.switches
    STATE._switches = replace(before, mode="strict")
    try:
        with pytest.raises(integrity.IntegrityError, match=r"something \(silence: VERL_COMPAT_DISABLE=check_hf_load\)"):
            integrity.tell("check_hf_load", "something")
    finally:
        STATE._switches = before


def test_an_adapter_that_lost_a_factor_is_refused(dense_checkpoint, tmp_path):
    """`check_hf_adapter_save`: complete is silent; half of a pair is an error after the save."""
    from megatron.bridge import AutoBridge
    from megatron.bridge.peft.lora import LoRA

    if not hasattr(AutoBridge, "save_hf_adapter"):
        pytest.skip("this Bridge saves no adapter in PEFT's format (it came with 0.4)")
    bridge, provider = build_provider(dense_checkpoint)
    lora = LoRA(target_modules=["linear_proj", "linear_fc2"], dim=4, alpha=8)
    provider.register_pre_wrap_hook(lambda model: lora(model, training=True))
    model = build_model(provider)
    bridge.save_hf_adapter(model, tmp_path / "whole", peft_config=lora, show_progress=False)
    found = integrity.results()["check_hf_adapter_save"]
    assert found["exported"] == found["on_disk"] == 16  # 4 layers x 2 modules x (A, B)
    assert found["elements"][0] == found["elements"][1]
    with pytest.MonkeyPatch.context() as patch:
        import safetensors.torch

        kept = safetensors.torch.save_file

        def forgetful(tensors, file, *args, **kwargs):
            name = next(name for name in tensors if ".lora_B." in name)
            return kept({key: tensor for key, tensor in tensors.items() if key != name}, file, *args, **kwargs)

        patch.setattr(safetensors.torch, "save_file", forgetful)
        with pytest.raises(integrity.IntegrityError, match=r"incomplete: 1 of 16 exported tensors"):
            bridge.save_hf_adapter(model, tmp_path / "part", peft_config=lora, show_progress=False)
