"""Gated-delta-net layers on a megatron-core that refuses packed sequences."""

from verl_compat.records import Adapter, Wrap

ADAPTER = Adapter(
    id="core_lt_0_18_gated_delta_net_packed",
    kind="diagnose",
    summary="Gated-delta-net layers on a megatron-core that refuses packed sequences",
    target="megatron.core.ssm.gated_delta_net",
    applies={"verl": ">=0.7.0", "megatron-core": ">=0.16,<0.18"},
    tested=(
        {"verl": "0.8.0", "megatron-core": "0.16.1"},
        {"verl": "0.8.0", "megatron-core": "0.17.1"},
        {"verl": "0.9.1", "megatron-core": "0.17.1"},
    ),
    needed=(),
    patches=(Wrap("GatedDeltaNet.__init__", "verl_compat.shims.diagnose_model:warn_gated_delta_net"),),
    why=(
        "verl packs sequences (use_remove_padding=True); the layer raises NotImplementedError in the "
        "first forward pass. core has the packed path from 0.18.0."
    ),
    links=(
        "https://github.com/NVIDIA/Megatron-LM/issues/3798",
        "https://github.com/verl-project/verl/pull/7336",
    ),
    retire_when={"megatron-core": ">=0.18"},
    reports=(
        "Megatron-LM#3798",
        "verl#7336",
    ),
)
