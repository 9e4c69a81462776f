"""Adapters: one module per upstream change, data only.

``TARGETS`` is written by ``python -m verl_compat.catalog .``; it is all that a starting
interpreter reads.
"""

TARGETS: dict[str, tuple[str, ...]] = {
    "megatron.bridge.models.conversion.param_mapping": ("bridge_lt_0_5_module_types",),
    "megatron.bridge.models.model_provider": ("bridge_lt_0_5_provider_overrides",),
    "megatron.bridge.peft.utils": ("bridge_lt_0_5_peft_helpers",),
    "megatron.bridge.training.utils.config_utils": ("bridge_lt_0_5_create_ddp_config",),
    "megatron.bridge.training.utils.train_utils": (
        "bridge_lt_0_5_freeze_moe_router",
        "bridge_lt_0_5_value_head",
    ),
    "verl.models.mcore.bridge": ("verl_own_value_model_hooks",),
    "verl.utils.modelopt.qat_weight_exporter": ("verl_ge_0_8_qat_exporter_amax",),
    "verl.utils.modelopt.vllm_modelopt_patch": ("verl_ge_0_8_modelopt_nvfp4_on_marlin",),
    "verl.utils.qat.quantizer": ("verl_ge_0_7_1_qat_zero_weight",),
    "verl.utils.qat.vllm_patch": (
        "verl_ge_0_7_1_qat_needs_vllm_0_12",
        "verl_ge_0_7_1_qat_nvfp4_on_marlin",
    ),
}
