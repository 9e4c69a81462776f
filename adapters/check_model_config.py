"""A provider that Bridge makes is compared with the checkpoint's configuration, field by field."""

from verl_compat.records import Adapter, Has, Wrap

ADAPTER = Adapter(
    id="check_model_config",
    kind="guard",
    summary="A provider that Bridge makes is compared with the checkpoint's configuration, field by field",
    target="megatron.bridge.models.conversion.auto_bridge",
    applies={"megatron-bridge": ">=0.3.0"},
    tested=(
        {"megatron-bridge": "0.3.1"},
        {"megatron-bridge": "0.4.2"},
        {"megatron-bridge": "0.5.1"},
        {"megatron-bridge": "0.6.2"},
    ),
    needed=(Has("AutoBridge.to_megatron_provider", "ModelProviderMixin.provide_distributed_model"),),
    patches=(
        Wrap(
            "AutoBridge.to_megatron_provider", "verl_compat.shims.check.model_config:check_provider", params=("self",)
        ),
        Wrap(
            "ModelProviderMixin.provide_distributed_model",
            "verl_compat.shims.check.model_config:note_overrides",
            params=("self",),
            home="megatron.bridge.models.model_provider",
        ),
    ),
    why=(
        "A field that moved in transformers (rope_theta into rope_parameters) or that a bridge does not map leaves "
        "Megatron's default: the model trains on other positions than it was made with, and nothing says so."
    ),
    links=(
        "https://github.com/AMD-AGI/Primus/issues/1037",
        "https://github.com/THUDM/slime/issues/1734",
    ),
    keep="a check of what this process does, whatever the release",
)
