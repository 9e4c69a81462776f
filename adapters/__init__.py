"""Adapters: one module per upstream change, data only.

``TARGETS`` is written by ``python -m verl_compat.catalog .``; it is all that a starting
interpreter reads.
"""

TARGETS: dict[str, tuple[str, ...]] = {
    "megatron.bridge.models.conversion.model_bridge": ("bridge_lt_0_5_expert_names",),
    "megatron.bridge.models.conversion.param_mapping": (
        "bridge_lt_0_4_expert_gather",
        "bridge_lt_0_5_module_types",
        "bridge_lt_0_5_quantised_norm_column",
    ),
    "megatron.bridge.models.conversion.peft_bridge": ("bridge_quantizer_buffers",),
    "megatron.bridge.models.model_provider": (
        "bridge_lt_0_5_provider_overrides",
        "bridge_provider_settings",
    ),
    "megatron.bridge.peft.utils": ("bridge_lt_0_5_peft_helpers",),
    "megatron.bridge.training.checkpointing": ("bridge_lt_0_5_fsdp_checkpoint",),
    "megatron.bridge.training.utils.config_utils": ("bridge_lt_0_5_create_ddp_config",),
    "megatron.bridge.training.utils.train_utils": (
        "bridge_lt_0_5_freeze_moe_router",
        "bridge_lt_0_5_value_head",
    ),
    "megatron.bridge.utils.common_utils": ("bridge_lt_0_5_expert_number",),
    "megatron.core.transformer.mlp": ("core_swiglu_sharded_factory",),
    "verl.models.mcore.bridge": ("verl_own_value_model_hooks",),
    "verl.utils.checkpoint.megatron_checkpoint_manager": (
        "verl_0_7_transformer_config_json",
        "verl_transformer_config_json",
    ),
    "verl.utils.megatron_peft_utils": ("verl_0_7_adapter_format",),
    "verl.utils.megatron_utils": (
        "verl_0_7_adapter_path",
        "verl_adapter_format",
    ),
    "verl.workers.engine.megatron.transformer_impl": (
        "verl_0_8_dynamic_cp",
        "verl_0_8_routing_replay",
    ),
}
