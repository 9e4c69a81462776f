"""The version-independent helpers: where upstream has them, and which shim stands in."""

HELPERS: dict[str, tuple[str, str]] = {
    "apply_overrides_and_finalize": (
        "megatron.bridge.models.model_provider:ModelProviderMixin.apply_overrides_and_finalize",
        "verl_compat.shims.provider_overrides:apply_overrides_and_finalize",
    ),
    "LinearForLastLayer": (
        "megatron.bridge.training.utils.train_utils:LinearForLastLayer",
        "verl_compat.shims.value_head:LinearForLastLayer",
    ),
    "create_ddp_config": (
        "megatron.bridge.training.utils.config_utils:create_ddp_config",
        "verl_compat.shims.ddp_config:create_ddp_config",
    ),
    "create_peft": ("megatron.bridge.peft.utils:create_peft", "verl_compat.shims.peft:create_peft"),
    "create_peft_hook": ("megatron.bridge.peft.utils:create_peft_hook", "verl_compat.shims.peft:create_peft_hook"),
    "create_value_head_hook": (
        "megatron.bridge.training.utils.train_utils:create_value_head_hook",
        "verl_compat.shims.value_head:create_value_head_hook",
    ),
    "freeze_moe_router": (
        "megatron.bridge.training.utils.train_utils:freeze_moe_router",
        "verl_compat.shims.moe_router:freeze_moe_router",
    ),
    "load_peft_adapter_checkpoint": (
        "megatron.bridge.peft.utils:load_peft_adapter_checkpoint",
        "verl_compat.shims.peft:load_peft_adapter_checkpoint",
    ),
    "load_fsdp_dtensor_checkpoint": (
        "megatron.bridge.training.checkpointing:load_fsdp_dtensor_checkpoint",
        "verl_compat.shims.fsdp_checkpoint:load_fsdp_dtensor_checkpoint",
    ),
    "make_value_model": (
        "megatron.bridge.training.utils.train_utils:make_value_model",
        "verl_compat.shims.value_head:make_value_model",
    ),
    "save_fsdp_dtensor_checkpoint": (
        "megatron.bridge.training.checkpointing:save_fsdp_dtensor_checkpoint",
        "verl_compat.shims.fsdp_checkpoint:save_fsdp_dtensor_checkpoint",
    ),
}

# shims that have no upstream counterpart: a module, or an object in one
OWN: dict[str, str] = {
    "config_get": "verl_compat.shims.config_access:config_get",
    "configure_provider": "verl_compat.shims.configure_provider:configure_provider",
    "convert_adapter_checkpoint": "verl_compat.shims.adapter_convert:convert_adapter_checkpoint",
    "plan_cache": "verl_compat.shims.plan_cache",
    "to_json_safe": "verl_compat.shims.json_safe:to_json_safe",
}

# adapter -> function that returns what it noted in this process, JSON-ready
FACTS: dict[str, str] = {
    "bridge_provider_settings": "verl_compat.shims.provider_settings:recorded_settings_json",
    "checks": "verl_compat.integrity:results",
}
