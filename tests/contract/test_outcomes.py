"""What each adapter does on each Bridge release: applied where it is needed, and nowhere else."""

from __future__ import annotations

import importlib

import pytest

from support.versions import BRIDGE, VERL
from verl_compat import adapters, status
from verl_compat.registry import all_adapters

# adapter -> (Bridge from, below) where it must be applied; elsewhere it must leave things alone
APPLIED = {
    "bridge_lt_0_4_expert_gather": ("0.3", "0.4"),
    "bridge_lt_0_5_create_ddp_config": ("0.3", "0.5"),
    "bridge_lt_0_5_expert_names": ("0.3", "0.5"),
    "bridge_lt_0_5_expert_number": ("0.3", "0.5"),
    "bridge_lt_0_5_freeze_moe_router": ("0.3", "0.5"),
    "bridge_lt_0_5_fsdp_checkpoint": ("0.3", "0.5"),
    "bridge_lt_0_5_module_types": ("0.3", "0.5"),
    "bridge_lt_0_5_peft_helpers": ("0.3", "0.5"),
    "bridge_lt_0_5_provider_overrides": ("0.3", "0.5"),
    "bridge_lt_0_5_quantised_norm_column": ("0.3", "0.5"),
    "bridge_lt_0_5_value_head": ("0.3", "0.5"),
}


def test_every_adapter_of_bridge_is_listed() -> None:
    about_bridge = {a.id for a in all_adapters() if a.target.startswith("megatron.bridge.") and a.kind == "backport"}
    assert about_bridge == set(APPLIED)


@pytest.mark.parametrize("adapter_id", APPLIED)
def test_applied_where_needed_and_nowhere_else(adapter_id: str) -> None:
    from packaging.version import Version

    (target,) = [target for target, ids in adapters.TARGETS.items() if adapter_id in ids]
    importlib.import_module(target)
    low, high = map(Version, APPLIED[adapter_id])
    assert BRIDGE is not None
    expected = {"applied"} if low <= BRIDGE < high else {"not-needed", "out-of-range"}
    assert status().outcome(adapter_id) in expected


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
