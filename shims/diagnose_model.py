"""Settings that are known to go wrong, told while the model is configured or built."""

from __future__ import annotations

from typing import Any

from verl_compat.shims.notices import before, diagnosis, installed, setting


def router_balancing(provider: Any, *args: Any, **kwargs: Any) -> str | None:
    """What the MoE router is built with, where an auxiliary loss is in force.

    Bridge's model bridges set aux_loss or global_aux_loss; verl overrides that with "none" unless
    override_transformer_config says otherwise, mbridge does not set it at all.
    """
    if not setting(provider, "num_moe_experts", 0):
        return None
    kind = getattr(provider, "moe_router_load_balancing_type", None)
    coefficient = getattr(provider, "moe_aux_loss_coeff", None)
    if kind in (None, "none") or not _positive(coefficient):
        return None
    return diagnosis(
        f"the MoE router is built with moe_router_load_balancing_type={kind!r}, moe_aux_loss_coeff={coefficient!r}, "
        f"moe_z_loss_coeff={getattr(provider, 'moe_z_loss_coeff', None)!r} and "
        f"calculate_per_token_loss={getattr(provider, 'calculate_per_token_loss', None)!r}",
        installed("megatron-bridge", "megatron-core", "verl"),
        "The auxiliary loss is added to the policy gradient; a reward that stays flat with Megatron-Bridge and rises "
        "with mbridge has been reported for such a difference in settings.",
        "For none, set override_transformer_config.moe_router_load_balancing_type=none.",
    )


def _positive(coefficient: Any) -> bool:
    values = coefficient if isinstance(coefficient, (list, tuple)) else [coefficient]
    return any(value for value in values)


def mtp_embedding(provider: Any, *args: Any, **kwargs: Any) -> str | None:
    """MTP layers at PP > 1: the last stage holds the embedding as well, and Bridge 0.3 wants one owner."""
    pipeline = setting(provider, "pipeline_model_parallel_size", 1)
    layers = setting(provider, "mtp_num_layers", 0)
    if pipeline == 1 or not layers:
        return None
    return diagnosis(
        f"mtp_num_layers={layers} with pipeline_model_parallel_size={pipeline}",
        installed("megatron-bridge", "megatron-core"),
        "The first and the last stage both hold the word embedding, and this Bridge refuses a tensor that two stages "
        "own: the first export to the rollout raises ValueError.",
        "Install megatron-bridge >= 0.4 with its megatron-core, or set "
        "override_transformer_config.mtp_num_layers=null.",
    )


def gated_delta_net(*args: Any, **kwargs: Any) -> str | None:
    """A gated-delta-net layer is built on a core that refuses packed sequences."""
    return diagnosis(
        "the model has gated-delta-net layers (Qwen3-Next, Qwen3.5)",
        installed("megatron-core", "verl"),
        "Before 0.18 megatron-core refuses packed (THD) sequences in them, and verl packs with use_remove_padding=True "
        "(the default): NotImplementedError in the first forward pass.",
        "Install megatron-core >= 0.18 with its megatron-bridge, or set "
        "actor_rollout_ref.model.use_remove_padding=False.",
    )


def gpt_oss_layout(*args: Any, **kwargs: Any) -> str | None:
    """gpt-oss with a Bridge that turns `down_proj` round on import and on export."""
    return diagnosis(
        "gpt-oss model",
        installed("megatron-bridge", "verl", "vllm"),
        "Bridge 0.4.0 and 0.4.1 transpose the experts' down_proj on import and again on export: both the trained model "
        "and the rollout compute with wrong weights (reward 0 from step 0), without an error: the matrix is square.",
        "Install megatron-bridge >= 0.4.2.",
    )


def muon(engine: Any, *args: Any, **kwargs: Any) -> str | None:
    """Muon with the layer-wise distributed optimizer, which released cores do not fit."""
    config = getattr(engine, "optimizer_config", None)
    if config is None or "muon" not in str(setting(config, "optimizer", "")).lower():
        return None
    if not setting(config, "use_layer_wise_distributed_optimizer", False):
        return None
    return diagnosis(
        f"optimizer={setting(config, 'optimizer')!r} with use_layer_wise_distributed_optimizer=True",
        installed("verl", "megatron-core"),
        "verl needs tag_params_for_buffer_routing (megatron-core >= 0.18) and the DDP setting "
        "use_layer_wise_param_layout, which no released megatron-core up to 0.19.2 has; verl stops here.",
        "Set use_layer_wise_distributed_optimizer=False, take another optimizer, or build megatron-core from its "
        "development branch.",
    )


def lora_on_dist_checkpoint(engine: Any, *args: Any, **kwargs: Any) -> str | None:
    """A base-only distributed checkpoint loaded into a model that has LoRA adapters already."""
    if getattr(engine, "peft_cls", None) is None:
        return None
    if not setting(engine.engine_config, "use_dist_checkpointing", False):
        return None
    return diagnosis(
        "LoRA with megatron.use_dist_checkpointing=True",
        installed("verl", "megatron-bridge", "megatron-core"),
        "The adapters are part of the model's sharded state dict by the time that the base checkpoint is loaded, and a "
        "checkpoint of the base model alone has no tensors for them: loading fails, or leaves them out.",
        "Set megatron.use_dist_checkpointing=False, so that Megatron-Bridge loads the base weights from the Hugging "
        "Face checkpoint.",
    )


warn_router_balancing = before("bridge_moe_router_balancing", router_balancing)
warn_mtp_embedding = before("bridge_lt_0_4_mtp_embedding", mtp_embedding)
warn_gated_delta_net = before("core_lt_0_18_gated_delta_net_packed", gated_delta_net)
warn_gpt_oss_layout = before("bridge_0_4_gpt_oss_layout", gpt_oss_layout)
warn_muon = before("verl_muon_layer_wise", muon)
warn_lora_on_dist_checkpoint = before("verl_lora_on_dist_checkpoint", lora_on_dist_checkpoint)
