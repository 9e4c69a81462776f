"""Adapters: one module per upstream change, data only.

``TARGETS`` is written by ``python -m verl_compat.catalog .``; it is all that a starting
interpreter reads.
"""

TARGETS: dict[str, tuple[str, ...]] = {
    "mbridge": ("mbridge_core_pair",),
    "mbridge.models.qwen3_vl.rope_utils": ("mbridge_qwen3_vl_packed_rotary",),
    "megatron.bridge": ("bridge_core_pair",),
    "megatron.bridge.models": ("bridge_circular_import",),
    "megatron.bridge.models.conversion.auto_bridge": (
        "bridge_transformers_range",
        "verl_0_7_0_export_weights",
    ),
    "megatron.bridge.models.conversion.model_bridge": ("bridge_ownerless_tasks",),
    "megatron.bridge.models.conversion.param_mapping": ("bridge_lt_0_5_module_types",),
    "megatron.bridge.models.gpt_oss.gpt_oss_bridge": ("bridge_0_4_gpt_oss_layout",),
    "megatron.bridge.models.model_provider": (
        "bridge_lt_0_4_mtp_embedding",
        "bridge_lt_0_5_provider_overrides",
        "bridge_moe_router_balancing",
    ),
    "megatron.bridge.peft.utils": ("bridge_lt_0_5_peft_helpers",),
    "megatron.bridge.training.checkpointing": ("bridge_sync_save_strategy",),
    "megatron.bridge.training.config": ("bridge_core_pair_training",),
    "megatron.bridge.training.utils.config_utils": ("bridge_lt_0_5_create_ddp_config",),
    "megatron.bridge.training.utils.train_utils": (
        "bridge_lt_0_5_freeze_moe_router",
        "bridge_lt_0_5_value_head",
    ),
    "megatron.core.dist_checkpointing.exchange_utils": ("core_lt_0_16_np_product_exchange_utils",),
    "megatron.core.dist_checkpointing.mapping": ("core_lt_0_16_np_product_mapping",),
    "megatron.core.dist_checkpointing.strategies.base": (
        "core_0_17_async_calls",
        "core_ge_0_19_async_calls",
    ),
    "megatron.core.dist_checkpointing.validation": ("core_lt_0_16_np_product_validation",),
    "megatron.core.distributed.fsdp.src.megatron_fsdp.utils": ("core_0_17_fsdp_safe_get_rank",),
    "megatron.core.enums": ("core_ge_0_17_encoder_and_decoder",),
    "megatron.core.ssm.gated_delta_net": ("core_lt_0_18_gated_delta_net_packed",),
    "megatron.core.transformer.fsdp_dtensor_checkpoint": ("core_fsdp_swiglu_optimizer_state",),
    "verl.models.mcore.bridge": (
        "verl_bridge_missing",
        "verl_own_value_model_hooks",
    ),
    "verl.utils.checkpoint.fsdp_checkpoint_manager": ("verl_fsdp_async_save",),
    "verl.utils.checkpoint.megatron_checkpoint_manager": (
        "verl_0_8_async_save_queue",
        "verl_0_8_strict_save",
    ),
    "verl.utils.megatron.dist_checkpointing": ("verl_async_save_strategy",),
    "verl.utils.megatron.router_replay_patch": ("verl_0_7_0_routing_padding_mask",),
    "verl.utils.megatron.router_replay_utils": ("verl_router_replay_layer_offset",),
    "verl.utils.megatron_utils": ("verl_0_8_mtp_disabled",),
    "verl.utils.vllm.vllm_fp4_utils": ("verl_ge_0_9_mxfp4_replace_parameter",),
    "verl.utils.vllm.vllm_fp8_utils": (
        "verl_lt_0_8_fp8_rollout",
        "verl_lt_0_9_fused_moe_class",
    ),
    "verl.workers.config.megatron_peft": (
        "bridge_expert_lora_layout",
        "bridge_ge_0_6_moe_lora_rollout",
        "bridge_lt_0_5_moe_lora_merge",
        "verl_lt_0_9_lora_rollout_names",
    ),
    "verl.workers.engine.megatron.transformer_impl": (
        "verl_dynamic_context_parallel",
        "verl_lora_on_dist_checkpoint",
        "verl_lt_0_9_1_ddp_grad_dtype",
        "verl_muon_layer_wise",
        "verl_split_stacked_experts",
        "verl_weight_tuple_width",
    ),
    "verl.workers.engine_workers": ("verl_ge_0_8_async_save_finalize",),
    "verl.workers.rollout.vllm_rollout.vllm_async_server": ("verl_0_7_0_build_app",),
    "verl.workers.rollout.vllm_rollout.vllm_rollout": ("verl_0_7_0_worker_wrapper",),
    "vllm.entrypoints.harmony_utils": ("vllm_harmony_utils_moved",),
    "vllm.lora.models": ("vllm_lora_models_moved",),
    "vllm.model_executor.layers.fused_moe": ("vllm_lt_0_22_routed_experts",),
    "vllm.model_executor.layers.fused_moe.layer": ("vllm_ge_0_27_fused_moe_name",),
    "vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method": ("vllm_ge_0_24_trtllm_moe_reload",),
}
