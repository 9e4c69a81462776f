"""Quantised exports keep Bridge's own planning; they are counted."""

from verl_compat.records import Adapter, Has, Wrap

ADAPTER = Adapter(
    id="bridge_ge_0_5_plan_cache_quant_export",
    kind="cache",
    summary="Counts export_hf_weights_quant among the exports whose plan is never kept; changes nothing",
    target="megatron.bridge.models.conversion.auto_bridge",
    applies={"megatron-bridge": ">=0.5.0"},
    tested=(
        {"megatron-bridge": "0.5.1", "megatron-core": "0.18.2"},
        {"megatron-bridge": "0.6.2", "megatron-core": "0.19.2"},
    ),
    needed=(Has("AutoBridge.export_hf_weights_quant"),),
    patches=(
        Wrap(
            path="AutoBridge.export_hf_weights_quant",
            wrapper="verl_compat.shims.plan_cache:count_quant_export",
            params=("self", "model"),
        ),
    ),
    why=(
        "Quantised exports take views and copies of scales into their plan, so it is never kept; an operator who "
        "wonders why a sync stays slow finds them under stats().exempt['quant']."
    ),
    links=("https://github.com/volcengine/verl/pull/7348",),
    keep="goes with bridge_plan_cache",
)
