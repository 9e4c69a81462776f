"""AutoBridge.export_weights, which verl 0.7.0's engine calls, on Megatron-Bridge."""

from verl_compat.records import Adapter, Add

ADAPTER = Adapter(
    id="verl_0_7_0_export_weights",
    kind="rename",
    summary="AutoBridge.export_weights, which verl 0.7.0's engine calls, on Megatron-Bridge",
    target="megatron.bridge.models.conversion.auto_bridge",
    applies={"verl": ">=0.7.0,<0.7.1", "megatron-bridge": ">=0.3.0"},
    tested=(
        {"verl": "0.7.0", "megatron-bridge": "0.3.1"},
        {"verl": "0.7.0", "megatron-bridge": "0.6.2"},
    ),
    needed=(),
    patches=(Add("AutoBridge.export_weights", "verl_compat.shims.verl_repairs:export_weights"),),
    why=(
        "verl 0.7.0's engine worker calls mbridge's method name on either bridge: AttributeError: "
        "'AutoBridge' object has no attribute 'export_weights' at the first weight sync."
    ),
    links=("https://github.com/verl-project/verl/pull/4836",),
    retire_when={"verl": ">=0.7.1"},
    reports=("verl#4836",),
)
