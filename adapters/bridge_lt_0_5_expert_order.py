"""Numerical order of single experts for Bridge before 0.5."""

from verl_compat.records import Adapter, Wrap

ADAPTER = Adapter(
    id="bridge_lt_0_5_expert_order",
    kind="backport",
    summary="Experts of a SequentialMLP in numerical order, for Bridge before 0.5",
    target="megatron.bridge.models.conversion.utils",
    applies={"megatron-bridge": ">=0.3.0,<0.5"},
    tested=(
        {"megatron-bridge": "0.3.1", "megatron-core": "0.16.1"},
        {"megatron-bridge": "0.4.2", "megatron-core": "0.17.1"},
    ),
    needed=(),
    patches=(Wrap("extract_sort_key", "verl_compat.shims.qat_names:sort_key", params=("param_name",)),),
    consumers=(
        "megatron.bridge.models.conversion.model_bridge",
        "megatron.bridge.models.conversion.peft_bridge",
    ),
    why=(
        "Bridge before 0.5 orders local_experts.10 before local_experts.2. Values are right all the same; the "
        "order of an export differs from newer releases, on which consumers that stream by expert rely."
    ),
    links=(
        "https://github.com/NVIDIA-NeMo/Megatron-Bridge/pull/3813",
        "https://github.com/verl-project/verl/pull/6335",
    ),
    retire_when={"megatron-bridge": ">=0.5"},
)
