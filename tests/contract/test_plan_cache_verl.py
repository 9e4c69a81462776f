"""verl_0_9_export_tasks: verl's own weight sync on a real model, its hand-kept list routed through the cache."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from support.plan import Layout, assert_equal, build, fresh, outcome, train_step
from verl_compat import plan_cache

pytestmark = pytest.mark.bridge


@pytest.fixture
def transformer_impl(monkeypatch):
    module = pytest.importorskip(
        "verl.workers.engine.megatron.transformer_impl", reason="verl is not installed", exc_type=ImportError
    )
    if not hasattr(module.MegatronEngine, "_mbridge_export_tasks"):
        pytest.skip("this verl keeps no task list (0.9 and newer do)")
    monkeypatch.setattr(module, "load_megatron_model_to_gpu", lambda *args, **kwargs: None)  # there is no GPU
    plan_cache.clear()
    plan_cache.reset_stats()
    return module


def make_engine(transformer_impl, checkpoint, peft=None, merge=False):
    """A MegatronEngine with a bridge and a model, without the training set-up."""
    engine = object.__new__(transformer_impl.MegatronEngine)
    engine.bridge, engine.module = build(Layout("verl", 1, peft=peft), checkpoint)
    engine.vanilla_bridge, engine._qat_enabled, engine._hf_export_tasks = False, False, None
    engine.peft_cls = object() if peft else None
    lora = {"merge": merge, "rank": 4, "alpha": 8, "target_modules": ["linear_qkv"], "exclude_modules": []}
    engine.model_config = SimpleNamespace(lora=lora)
    return engine


def sync(engine, **kwargs):
    return outcome(lambda: engine.get_per_tensor_param(**kwargs)[0])


def test_adapter_is_applied(transformer_impl):
    assert transformer_impl.MegatronEngine._mbridge_export_tasks.__verl_compat__ == "verl_0_9_export_tasks"


def replace_weight(engine):
    import torch

    layer = engine.module[0].decoder.layers[0].mlp.linear_fc2
    layer.weight = torch.nn.Parameter(torch.randn_like(layer.weight))


def test_planned_once_and_never_stale(transformer_impl, dense_checkpoint):
    engine = make_engine(transformer_impl, dense_checkpoint)
    for step in range(3):
        train_step(engine.module, step)
        assert_equal(sync(engine), fresh(engine.bridge, engine.module, "merged"), f"sync {step}")
    replace_weight(engine)
    assert_equal(sync(engine), fresh(engine.bridge, engine.module, "merged"), "parameter replaced")
    stats = plan_cache.stats()
    assert (stats.hits, stats.reasons, stats.exempt) == (2, {"first export": 1, "modules or parameters": 1}, {})


def test_verl_alone_exports_stale_weights(transformer_impl, dense_checkpoint, monkeypatch):
    """Why the adapter is there; fails when verl checks its list."""
    wrapped = transformer_impl.MegatronEngine._mbridge_export_tasks
    monkeypatch.setattr(transformer_impl.MegatronEngine, "_mbridge_export_tasks", wrapped.__wrapped__)
    engine = make_engine(transformer_impl, dense_checkpoint)
    sync(engine)
    replace_weight(engine)
    with pytest.raises(AssertionError, match=r"values of .*down_proj.weight differ"):
        assert_equal(sync(engine), fresh(engine.bridge, engine.module, "merged"), "parameter replaced")


def test_reset_plans_anew(transformer_impl, dense_checkpoint):
    engine = make_engine(transformer_impl, dense_checkpoint)
    sync(engine)
    sync(engine)
    engine._hf_export_tasks = None  # what verl's initialize() does
    sync(engine)
    assert plan_cache.stats().reasons == {"first export": 1, "export options": 1}
    assert plan_cache.stats().hits == 1


def test_list_kept_before_activation_is_dropped(transformer_impl, dense_checkpoint):
    engine = make_engine(transformer_impl, dense_checkpoint)
    engine._hf_export_tasks = engine.bridge.get_conversion_tasks(engine.module)
    replace_weight(engine)
    assert_equal(sync(engine), fresh(engine.bridge, engine.module, "merged"), "late activation")


def test_without_the_bridge_adapter_it_is_verls_list(transformer_impl, dense_checkpoint):
    """VERL_COMPAT_DISABLE=bridge_plan_cache: Bridge gets a list and keeps working as with verl alone."""
    from support.plan import bridge_alone

    engine = make_engine(transformer_impl, dense_checkpoint)
    expected = fresh(engine.bridge, engine.module, "merged")
    with bridge_alone():
        assert_equal(sync(engine), expected, "unrouted")
        kept = list(engine._hf_export_tasks)
        assert_equal(sync(engine), expected, "unrouted again")
        assert list(engine._hf_export_tasks) == kept


def test_lora_syncs(transformer_impl, dense_checkpoint, monkeypatch):
    """Base weights unmerged, then adapters alone at each step; and merged."""
    monkeypatch.setattr(transformer_impl, "build_peft_config_for_vllm", lambda lora: {})
    engine = make_engine(transformer_impl, dense_checkpoint, peft="lora")
    for step in range(3):
        train_step(engine.module, step)
        for done, mode in ((False, "unmerged"), (True, "adapters")):
            expected = fresh(engine.bridge, engine.module, mode)
            assert_equal(sync(engine, base_sync_done=done), expected, f"{mode} {step}")
    merged = make_engine(transformer_impl, dense_checkpoint, peft="lora", merge=True)
    for step in range(3):
        train_step(merged.module, step)
        assert_equal(sync(merged), fresh(merged.bridge, merged.module, "merged"), f"merged {step}")
    assert plan_cache.stats().hits == 6


def test_fp8_is_left_to_verl_and_bridge(transformer_impl, dense_checkpoint):
    engine = make_engine(transformer_impl, dense_checkpoint)
    if not hasattr(engine.bridge, "export_weight_dtype"):
        pytest.skip("this Bridge has no FP8 export (0.5 and newer have)")
    engine.bridge.export_weight_dtype = "fp8"
    assert engine._mbridge_export_tasks() is None
    assert engine._hf_export_tasks is None
