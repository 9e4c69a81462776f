"""After a LoRA adapter was saved, every exported weight is in the file, each A with its B."""

from verl_compat.records import Adapter, Has, Wrap

ADAPTER = Adapter(
    id="check_hf_adapter_save",
    kind="guard",
    summary="After a LoRA adapter was saved, every exported weight is in the file, each A with its B",
    target="megatron.bridge.models.conversion.auto_bridge",
    applies={"megatron-bridge": ">=0.4.2"},
    tested=(
        {"megatron-bridge": "0.4.2"},
        {"megatron-bridge": "0.5.1"},
        {"megatron-bridge": "0.6.2"},
    ),
    needed=(Has("AutoBridge.save_hf_adapter", "AutoBridge.export_adapter_weights"),),
    patches=(
        Wrap(
            "AutoBridge.save_hf_adapter",
            "verl_compat.shims.check.saved:check_adapter_save",
            params=("self", "model", "path"),
        ),
        Wrap(
            "AutoBridge.export_adapter_weights",
            "verl_compat.shims.check.saved:note_adapter_weights",
            params=("self", "model"),
        ),
    ),
    why=("An adapter that lacks a factor is loaded without a word, and its module stays as in the base model."),
    links=("https://github.com/NVIDIA-NeMo/Megatron-Bridge/releases/tag/v0.4.0",),
    keep="a check of what this process does, whatever the release",
)
