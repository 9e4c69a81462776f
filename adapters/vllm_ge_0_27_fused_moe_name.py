"""The name FusedMoE in vLLM 0.27 and newer, for verl before 0.9."""

from verl_compat.records import Adapter, Add

ADAPTER = Adapter(
    id="vllm_ge_0_27_fused_moe_name",
    kind="rename",
    summary="The name FusedMoE in vLLM 0.27 and newer, for verl before 0.9",
    target="vllm.model_executor.layers.fused_moe.layer",
    applies={"verl": ">=0.7.0,<0.9", "vllm": ">=0.27"},
    tested=(
        {"verl": "0.8.0", "vllm": "0.29.0"},
        {"verl": "0.8.0", "vllm": "0.33.0"},
    ),
    needed=(),
    patches=(Add("FusedMoE", "vllm.model_executor.layers.fused_moe.routed_experts:RoutedExperts"),),
    why=("verl 0.7 and 0.8 import it at the top of the rollout, FP8 or not: every vLLM rollout ends in ImportError."),
    links=(
        "https://github.com/vllm-project/vllm/pull/41184",
        "https://github.com/verl-project/verl/pull/7136",
    ),
    retire_when={"verl": ">=0.9"},
    reports=("verl#7136",),
)
