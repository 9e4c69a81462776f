"""Fields that some bridges hard-code are read from the checkpoint's configuration."""

from verl_compat.records import Adapter, Has, Wrap

ADAPTER = Adapter(
    id="bridge_hard_coded_fields",
    kind="default",
    summary="Rotary base, norm epsilon and router normalisation that some bridges hard-code come from the checkpoint",
    target="megatron.bridge.models.conversion.auto_bridge",
    applies={"megatron-bridge": ">=0.3.0"},
    tested=(
        {"megatron-bridge": "0.3.1"},
        {"megatron-bridge": "0.4.2"},
        {"megatron-bridge": "0.5.1"},
        {"megatron-bridge": "0.6.2"},
    ),
    needed=(Has("AutoBridge.to_megatron_provider"),),
    patches=(
        Wrap(
            "AutoBridge.to_megatron_provider",
            "verl_compat.shims.provider_fields:read_from_checkpoint",
            params=("self",),
        ),
    ),
    why=(
        "Ernie 4.5 MoE, Mistral 3, Qwen2.5-Omni, Qwen3-Omni and (before Bridge 0.6) Qwen3-MoE get fixed values for "
        "fields that their config.json states; a checkpoint that states others trains as another model."
    ),
    links=("https://github.com/NVIDIA-NeMo/Megatron-Bridge/releases/tag/v0.6.0",),
    keep="Bridge 0.6.2 still fixes all of them but Qwen3-MoE's",
)
