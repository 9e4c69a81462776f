"""RoutedExperts in vLLM before 0.22 (there FusedMoE itself), for verl 0.9."""

from verl_compat.records import Adapter, Add

ADAPTER = Adapter(
    id="vllm_lt_0_22_routed_experts",
    kind="rename",
    summary="RoutedExperts in vLLM before 0.22 (there FusedMoE itself), for verl 0.9",
    target="vllm.model_executor.layers.fused_moe",
    applies={"verl": ">=0.9.0", "vllm": ">=0.18,<0.22"},
    tested=(
        {"verl": "0.9.1", "vllm": "0.18.1"},
        {"verl": "0.9.1", "vllm": "0.20.2"},
    ),
    needed=(),
    patches=(Add("RoutedExperts", "vllm.model_executor.layers.fused_moe.layer:FusedMoE"),),
    why=(
        "verl 0.9 imports it in every FP8 refit: ImportError on vLLM 0.18 to 0.21, which verl 0.9.0 "
        "allows. vLLM 0.22 and 0.23 have the same alias."
    ),
    links=("https://github.com/vllm-project/vllm/pull/41184",),
    retire_when={"vllm": ">=0.22"},
)
