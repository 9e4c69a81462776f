"""A Hugging Face save writes every exported tensor, also those of files that are not complete (Bridge < 0.6)."""

from verl_compat.records import Adapter, Has, Wrap

ADAPTER = Adapter(
    id="bridge_lt_0_6_save_every_tensor",
    kind="guard",
    summary="A Hugging Face save writes every exported tensor, also of files that are not complete (Bridge < 0.6)",
    target="megatron.bridge.models.conversion.auto_bridge",
    applies={"megatron-bridge": ">=0.3.0,<0.6"},
    tested=(
        {"megatron-bridge": "0.3.1"},
        {"megatron-bridge": "0.4.2"},
        {"megatron-bridge": "0.5.1"},
    ),
    needed=(Has("SafeTensorsStateSource.save_generator", "AutoBridge.save_hf_weights"),),
    patches=(
        Wrap(
            "SafeTensorsStateSource.save_generator",
            "verl_compat.shims.hf_save:save_all",
            params=("self", "generator", "output_path", "strict"),
            home="megatron.bridge.models.hf_pretrained.state",
        ),
        Wrap(
            "AutoBridge.save_hf_weights",
            "verl_compat.shims.hf_save:note_what_the_model_omits",
            params=("self", "model", "path"),
        ),
    ),
    why=(
        "One tensor that is not exported (MTP switched off, a parameter without a mapping) costs the whole file that "
        "it lies in: 25 of 47 tensors reach the disk, with a printed line and no exception; with strict=False the "
        "index names tensors that are in no file."
    ),
    links=(
        "https://github.com/NVIDIA-NeMo/Megatron-Bridge/pull/4188",
        "https://github.com/inclusionAI/AReaL/issues/1403",
    ),
    retire_when={"megatron-bridge": ">=0.6"},
    reports=("Megatron-Bridge#4188", "AReaL#1403", "Relax#148"),
)
