"""After Hugging Face weights were loaded, names that nothing read and parameters that nothing filled."""

from verl_compat.records import Adapter, Has, Wrap

ADAPTER = Adapter(
    id="check_hf_load",
    kind="guard",
    summary="After Hugging Face weights were loaded, names that nothing read and parameters that nothing filled",
    target="megatron.bridge.models.conversion.auto_bridge",
    applies={"megatron-bridge": ">=0.3.1"},
    tested=(
        {"megatron-bridge": "0.3.1"},
        {"megatron-bridge": "0.4.2"},
        {"megatron-bridge": "0.5.1"},
        {"megatron-bridge": "0.6.2"},
    ),
    needed=(Has("MegatronModelBridge.load_weights_hf_to_megatron", "MegatronModelBridge._with_progress_tracking"),),
    patches=(
        Wrap(
            "MegatronModelBridge.load_weights_hf_to_megatron",
            "verl_compat.shims.check.loaded:check_load",
            params=("self", "hf_pretrained", "megatron_model"),
            home="megatron.bridge.models.conversion.model_bridge",
        ),
        Wrap(
            "MegatronModelBridge._with_progress_tracking",
            "verl_compat.shims.check.loaded:note_tasks",
            params=("self", "tasks"),
            home="megatron.bridge.models.conversion.model_bridge",
        ),
        Wrap(
            "SafeTensorsStateSource.load_tensors",
            "verl_compat.shims.check.loaded:note_reads",
            params=("self", "keys_to_load"),
            home="megatron.bridge.models.hf_pretrained.state",
        ),
    ),
    why=(
        "A parameter that no checkpoint tensor reaches keeps its random initial value, and a checkpoint tensor that "
        "nothing reads is missing in every later save; Bridge says neither."
    ),
    links=("https://github.com/NVIDIA-NeMo/Megatron-Bridge/pull/4188",),
    keep="a check of what this process does, whatever the release",
)
