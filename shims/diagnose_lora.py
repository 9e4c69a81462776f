"""LoRA set-ups that are known to go wrong, told when verl makes the adapter (``get_peft_cls``).

Each check takes verl's ``get_peft_cls(model_config, bridge, provider, dtype)`` arguments and returns
one message or None; the provider has been configured by then, the model is not built yet.
"""

from __future__ import annotations

from typing import Any

from verl_compat.shims.notices import before, diagnosis, installed, setting

EXPERT_LAYERS = ("linear_fc1", "linear_fc2")


def _lora(model_config: Any) -> Any:
    """The LoRA settings, or None without LoRA."""
    lora = getattr(model_config, "lora", None)
    return lora if lora is not None and setting(lora, "rank", 0) > 0 else None


def _expert_lora(model_config: Any, provider: Any) -> Any:
    """The LoRA settings if they reach the experts of an MoE model."""
    lora = _lora(model_config)
    if lora is None or not setting(provider, "num_moe_experts", 0):
        return None
    targets = setting(lora, "target_modules", EXPERT_LAYERS)
    reached = any(layer in str(target) for target in targets for layer in EXPERT_LAYERS)
    return lora if reached or targets == "all-linear" else None


def expert_parallel_layout(model_config: Any, bridge: Any, provider: Any, dtype: Any = None) -> str | None:
    """Expert LoRA under layouts where Bridge trains it wrongly, without an error."""
    if _expert_lora(model_config, provider) is None:
        return None
    tensor = setting(provider, "tensor_model_parallel_size", 1)
    expert = setting(provider, "expert_model_parallel_size", 1)
    expert_tensor = setting(provider, "expert_tensor_parallel_size", tensor)
    reasons = []
    if expert_tensor > 1:
        reasons.append(f"expert_tensor_parallel_size={expert_tensor} gives wrong deltas and gradients")
    if expert == 1 and expert_tensor != tensor:
        reasons.append(
            f"expert_tensor_parallel_size={expert_tensor} differs from tensor_model_parallel_size={tensor} at "
            "expert_model_parallel_size=1, so that adapter gradients are reduced over the wrong ranks"
        )
    if expert > 1 and setting(provider, "gradient_accumulation_fusion", False):
        reasons.append(
            f"gradient_accumulation_fusion=True at expert_model_parallel_size={expert} lets shared adapter weights "
            "drift apart between expert-parallel ranks"
        )
    if not reasons:
        return None
    return diagnosis(
        "LoRA on MoE experts: " + "; ".join(reasons),
        installed("megatron-bridge", "megatron-core", "verl"),
        "It trains without an error, and wrongly.",
        "Set expert_tensor_parallel_size=1, and override_transformer_config.gradient_accumulation_fusion=False with "
        "expert parallelism, or keep linear_fc1 and linear_fc2 out of lora.target_modules.",
    )


def early_moe_merge(model_config: Any, bridge: Any, provider: Any, dtype: Any = None) -> str | None:
    """Expert LoRA merged or exported by a Bridge that drops part of it at expert parallelism."""
    expert = setting(provider, "expert_model_parallel_size", 1)
    if _expert_lora(model_config, provider) is None or expert == 1:
        return None
    return diagnosis(
        f"LoRA on MoE experts at expert_model_parallel_size={expert}",
        installed("megatron-bridge", "verl"),
        "Bridge before 0.5 was reported to leave expert adapters out when it merges them for the rollout, or to export "
        "those of one expert-parallel rank only (SkyRL#893); the rollout model would not be the trained one. The code "
        "of 0.3.1 and 0.4.2 gathers them, so compare one merged expert weight over two ranks before you trust either.",
        "Install megatron-bridge >= 0.5 with its megatron-core, set expert_model_parallel_size=1, or keep linear_fc1 "
        "and linear_fc2 out of lora.target_modules.",
    )


def names_by_model_type(model_config: Any, bridge: Any, provider: Any, dtype: Any = None) -> str | None:
    """Not merged LoRA with verl 0.7 and 0.8, whose base-weight names are made by model type."""
    lora = _lora(model_config)
    if lora is None or setting(lora, "merge", False):
        return None
    versions = installed("verl", "vllm", "megatron-bridge")
    if "vllm" not in versions:
        return None
    hf_config = getattr(model_config, "hf_config", None)
    kind = getattr(hf_config, "model_type", "unknown")
    if not setting(provider, "num_moe_experts", 0) and getattr(hf_config, "vision_config", None) is None:
        return None  # a dense language model's names are right
    return diagnosis(
        f"lora.merge=False with model type {kind!r}",
        versions,
        "This verl decides by model type, not by each name, which base weights vLLM keeps under `base_layer`: MoE "
        "and vision-language models end in KeyError 'embed_tokens.weight' or `no module named ...base_layer.weight` "
        "at the first weight sync.",
        "Set lora.merge=True, or use verl >= 0.9.1, which decides name by name.",
    )


def adapters_of_experts(model_config: Any, bridge: Any, provider: Any, dtype: Any = None) -> str | None:
    """Not merged expert LoRA: vLLM's add_lora takes no 3-D (all experts in one) adapter tensors."""
    lora = _expert_lora(model_config, provider)
    versions = installed("megatron-bridge", "megatron-core", "vllm", "verl")
    if lora is None or setting(lora, "merge", False) or "vllm" not in versions:
        return None
    return diagnosis(
        "LoRA on MoE experts with lora.merge=False",
        versions,
        "Bridge 0.6 exports expert adapters as one 3-D tensor per layer, which vLLM's add_lora rejects at step 0.",
        "Set lora.merge=True, or keep linear_fc1 and linear_fc2 out of lora.target_modules.",
    )


warn_expert_parallel_layout = before("bridge_expert_lora_layout", expert_parallel_layout)
warn_early_moe_merge = before("bridge_lt_0_5_moe_lora_merge", early_moe_merge)
warn_names_by_model_type = before("verl_lt_0_9_lora_rollout_names", names_by_model_type)
warn_adapters_of_experts = before("bridge_ge_0_6_moe_lora_rollout", adapters_of_experts)
