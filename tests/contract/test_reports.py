"""Reports repaired or told on real Bridge wheels: pairs, transformers' range, tasks that no rank owns."""

from __future__ import annotations

from importlib import metadata

import pytest

from support.tiny import build_model, build_provider, export_state
from verl_compat import status
from verl_compat.shims.version_pairs import declared_range, missing, status_note, transformers_range


@pytest.fixture(scope="module")
def versions():
    return {dist: metadata.version(dist) for dist in ("megatron-bridge", "megatron-core", "transformers")}


def test_this_environment_is_a_pair_that_goes_together(versions):
    import megatron.bridge  # noqa: F401

    assert missing(versions["megatron-bridge"], versions["megatron-core"]) == 0
    assert "goes together" in status_note(versions)
    assert status().outcome("bridge_core_pair") == "not-needed"


def test_transformers_range_is_read_from_bridges_metadata(versions):
    assert declared_range("megatron-bridge", "transformers")
    assert transformers_range(None, versions) is None
    text = transformers_range(
        None, {**versions, "transformers": "4.40.0" if versions["transformers"] > "5" else "5.99.0"}
    )
    assert text is not None
    assert declared_range("megatron-bridge", "transformers") in text


def test_a_weight_that_the_checkpoint_lacks_leaves_no_task(dense_checkpoint, monkeypatch):
    """SkyRL#2042: without the adapter a task without owner stays in the plan (an error with pipeline parallelism)."""
    bridge, provider = build_provider(dense_checkpoint)
    model = build_model(provider)
    before = [task.global_param_name for task in bridge.get_conversion_tasks(model)]
    source = bridge.hf_pretrained.state.source
    lost = {f"model.layers.1.self_attn.{name}_proj.weight" for name in "qkv"}
    keys = [key for key in source.get_all_keys() if key not in lost]
    monkeypatch.setattr(type(source), "get_all_keys", lambda self: keys)
    tasks = bridge.get_conversion_tasks(model)
    assert None not in tasks
    after = [task.global_param_name for task in tasks]
    assert after == [name for name in before if not ("layers.1." in name and name.endswith("linear_qkv.weight"))]
    assert len(after) == len(before) - 1
    assert not lost & set(export_state(bridge, model, conversion_tasks=tasks))
