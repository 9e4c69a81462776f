"""Says when transformers lies outside the range that the installed Bridge declares."""

from verl_compat.records import Adapter, Check

ADAPTER = Adapter(
    id="bridge_transformers_range",
    kind="diagnose",
    summary="Says when transformers lies outside the range that the installed Bridge declares",
    target="megatron.bridge.models.conversion.auto_bridge",
    applies={"megatron-bridge": ">=0.3.0"},
    tested=(
        {"megatron-bridge": "0.3.1"},
        {"megatron-bridge": "0.4.2"},
        {"megatron-bridge": "0.5.1"},
        {"megatron-bridge": "0.6.2"},
    ),
    needed=(),
    patches=(Check("verl_compat.shims.version_pairs:transformers_range"),),
    why=(
        "Bridge installed with --no-deps meets any transformers; verl 0.9.1 pins 5.9.0, which Bridge "
        "0.5.0 and 0.5.1 exclude."
    ),
    links=("https://github.com/verl-project/verl/blob/v0.9.1/setup.py",),
    keep="reads the metadata of whatever Bridge is installed",
    reports=("agentcore-rl-toolkit#86",),
)
