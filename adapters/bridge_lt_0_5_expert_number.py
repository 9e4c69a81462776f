"""Expert number in a parameter name for Bridge before 0.5."""

from verl_compat.records import Adapter, Wrap

ADAPTER = Adapter(
    id="bridge_lt_0_5_expert_number",
    kind="backport",
    summary="The innermost expert number of a parameter name, for Bridge before 0.5",
    target="megatron.bridge.utils.common_utils",
    applies={"megatron-bridge": ">=0.3.0,<0.5"},
    tested=(
        {"megatron-bridge": "0.3.1", "megatron-core": "0.16.1"},
        {"megatron-bridge": "0.4.2", "megatron-core": "0.17.1"},
    ),
    needed=(),
    patches=(
        Wrap("extract_expert_number_from_param", "verl_compat.shims.qat_names:expert_number", params=("param_name",)),
    ),
    consumers=(
        "megatron.bridge.models.conversion.param_mapping",
        "megatron.bridge.models.gpt_oss.gpt_oss_bridge",
        "megatron.bridge.models.qwen_vl.qwen3_vl_bridge",
    ),
    why=(
        "Bridge before 0.5 takes the first number after 'experts.', 'weight' or 'bias', wherever it stands: "
        "of experts.0.local_experts.3 that is 0. Weights then go to the wrong expert."
    ),
    links=(
        "https://github.com/NVIDIA-NeMo/Megatron-Bridge/pull/3813",
        "https://github.com/verl-project/verl/pull/6335",
    ),
    retire_when={"megatron-bridge": ">=0.5"},
)
