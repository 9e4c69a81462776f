"""Vanilla mbridge is untouched by bridge_plan_cache and verl_0_9_export_tasks."""

from __future__ import annotations

import importlib
import inspect

import pytest

from verl_compat import plan_cache
from verl_compat.registry import load

OURS = ("bridge_plan_cache", "bridge_ge_0_5_plan_cache_quant_export", "verl_0_9_export_tasks")


def test_no_record_of_the_plan_cache_names_mbridge():
    for adapter_id in OURS:
        adapter = load(adapter_id)
        assert not adapter.target.startswith("mbridge")
        assert "mbridge" not in adapter.applies


def test_mbridge_export_code_is_its_own():
    pytest.importorskip("mbridge", reason="mbridge is not installed")
    plan_cache.reset_stats()
    module = importlib.import_module("mbridge.core.bridge")
    functions = [value for value in vars(module.Bridge).values() if inspect.isfunction(value)]
    assert module.Bridge.export_weights in functions
    for function in functions:
        assert function.__code__.co_filename == module.__file__
        assert not hasattr(function, "__verl_compat__") or not function.__verl_compat__.endswith("plan_cache")
    assert plan_cache.stats().misses == plan_cache.stats().hits == 0


def test_wrap_refuses_an_mbridge_bridge():
    mbridge = pytest.importorskip("mbridge", reason="mbridge is not installed")
    with pytest.raises(TypeError, match="takes a megatron.bridge AutoBridge, got the class mbridge"):
        plan_cache.wrap(mbridge.AutoBridge)
