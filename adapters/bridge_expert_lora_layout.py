"""Expert LoRA under parallel layouts where Bridge trains it wrongly."""

from verl_compat.records import Adapter, Wrap

ADAPTER = Adapter(
    id="bridge_expert_lora_layout",
    kind="diagnose",
    summary="Expert LoRA under parallel layouts where Bridge trains it wrongly",
    target="verl.workers.config.megatron_peft",
    applies={"verl": ">=0.7.0", "megatron-bridge": ">=0.3.0"},
    tested=({"verl": "0.8.0", "megatron-bridge": "0.5.1"}, {"verl": "0.9.1", "megatron-bridge": "0.4.2"}),
    needed=(),
    patches=(
        Wrap(
            "get_peft_cls",
            "verl_compat.shims.diagnose_lora:warn_expert_parallel_layout",
            params=("model_config", "bridge", "provider"),
        ),
    ),
    why=(
        "At expert_tensor_parallel_size > 1, at EP=1 with ETP != TP, and at EP > 1 with fused "
        "weight-gradient accumulation, expert adapters get wrong deltas or gradients, or drift apart, "
        "without an error."
    ),
    links=(
        "https://github.com/NVIDIA-NeMo/Megatron-Bridge/issues/5634",
        "https://github.com/NVIDIA-NeMo/Megatron-Bridge/pull/5635",
        "https://github.com/NVIDIA-NeMo/Megatron-Bridge/issues/5229",
        "https://github.com/NVIDIA-NeMo/Megatron-Bridge/pull/6009",
    ),
    keep="open or merged after Bridge 0.6.2",
    reports=(
        "Megatron-Bridge#5634",
        "Megatron-Bridge#5635",
        "Megatron-Bridge#5229",
        "Megatron-Bridge#6009",
    ),
)
