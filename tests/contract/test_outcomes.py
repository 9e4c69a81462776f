"""What each adapter does on each Bridge release: applied where it is needed, and nowhere else."""

from __future__ import annotations

import importlib

import pytest

from support.versions import BRIDGE, VERL
from verl_compat import adapters, status
from verl_compat.records import Adapter
from verl_compat.registry import all_adapters
from verl_compat.versions import in_range

BACKPORTS = [a for a in all_adapters() if a.target.startswith("megatron.bridge.") and a.kind == "backport"]


@pytest.mark.parametrize("adapter", BACKPORTS, ids=lambda adapter: adapter.id)
def test_applied_where_needed_and_nowhere_else(adapter: Adapter) -> None:
    """The record's range against the real module, which has the last word.

    A range that is too wide ends as ``not-needed`` within it, one that is too narrow as ``untested`` beyond it.
    """
    assert BRIDGE is not None
    importlib.import_module(adapter.target)
    expected = {"applied"} if in_range(BRIDGE, adapter.applies["megatron-bridge"]) else {"not-needed", "out-of-range"}
    assert status().outcome(adapter.id) in expected


def test_verls_own_hooks_are_repaired_only_where_verl_uses_them() -> None:
    """``verl_own_value_model_hooks``: verl 0.7 always; from 0.8 on only after a fall-back, which ours prevents."""
    if VERL is None:
        pytest.skip("verl is not installed in this environment")
    import verl.models.mcore.bridge  # noqa: F401
    from packaging.version import Version

    expected = {"applied", "untested"} if Version("0.8") > VERL else {"not-needed"}
    assert status().outcome("verl_own_value_model_hooks") in expected


def test_nothing_failed_and_nothing_collided() -> None:
    for target in adapters.TARGETS:
        try:
            importlib.import_module(target)
        except Exception:
            continue  # an upstream that is not in this environment; verl raises ValueError without vLLM
    assert [a for a in status().adapters if a.outcome in ("failed", "collision")] == []
