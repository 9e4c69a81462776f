"""Says when vLLM chose an MoE backend whose weights cannot be reloaded (Blackwell)."""

from verl_compat.records import Adapter, Has, Wrap

ADAPTER = Adapter(
    id="vllm_ge_0_24_trtllm_moe_reload",
    kind="diagnose",
    summary="Says when vLLM chose an MoE backend whose weights cannot be reloaded (Blackwell)",
    target="vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method",
    applies={"verl": ">=0.7.0", "vllm": ">=0.20"},
    tested=(
        {"verl": "0.9.1", "vllm": "0.20.2"},
        {"verl": "0.9.1", "vllm": "0.24.0"},
        {"verl": "0.9.1", "vllm": "0.33.0"},
    ),
    needed=(Has("UnquantizedFusedMoEMethod.__init__"),),
    patches=(Wrap("UnquantizedFusedMoEMethod.__init__", "verl_compat.shims.vllm_experts:trtllm_backend"),),
    why=(
        "The FlashInfer TRT-LLM backend stores expert weights as 4-D tensors: the first weight sync "
        "raises ValueError and then hangs in NCCL."
    ),
    links=(
        "https://github.com/verl-project/verl/issues/7978",
        "https://github.com/verl-project/verl/pull/7987",
        "https://github.com/NVIDIA-NeMo/RL/pull/3403",
    ),
    keep="open upstream",
    reports=(
        "verl#7978",
        "verl#7987",
        "NeMo-RL#3403",
    ),
)
