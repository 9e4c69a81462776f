"""verl before 0.9 finds vLLM's expert weights where FusedMoE is a function or gone."""

from verl_compat.records import Adapter, Replace, Test, Wrap

ADAPTER = Adapter(
    id="verl_lt_0_9_fused_moe_class",
    kind="guard",
    summary="verl before 0.9 finds vLLM's expert weights where FusedMoE is a function or gone",
    target="verl.utils.vllm.vllm_fp8_utils",
    applies={"verl": ">=0.7.0,<0.9", "vllm": ">=0.24"},
    tested=(
        {"verl": "0.8.0", "vllm": "0.24.0"},
        {"verl": "0.8.0", "vllm": "0.29.0"},
        {"verl": "0.8.0", "vllm": "0.33.0"},
    ),
    needed=(Test("verl_compat.shims.vllm_experts:is_no_expert_class"),),
    patches=(
        Replace("FusedMoE", "verl_compat.shims.vllm_experts:make_expert_class", make=True, data=True),
        Wrap("get_module_from_param_name", "verl_compat.shims.vllm_experts:weight_holder", params=("model", "name")),
    ),
    why=(
        "With FP8 rollout isinstance(layer, FusedMoE) raises TypeError on vLLM 0.24 to 0.26, where it "
        "is a function; the weights are on the RoutedExperts of a MoERunner."
    ),
    links=(
        "https://github.com/vllm-project/vllm/pull/41184",
        "https://github.com/verl-project/verl/pull/6393",
    ),
    retire_when={"verl": ">=0.9"},
    reports=("verl#6393",),
)
