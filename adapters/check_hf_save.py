"""After a Hugging Face save, exported names, files, index and the source's names are compared."""

from verl_compat.records import Adapter, Has, Wrap

ADAPTER = Adapter(
    id="check_hf_save",
    kind="guard",
    summary="After a Hugging Face save, exported names, files, index and the source's names are compared",
    target="megatron.bridge.models.conversion.auto_bridge",
    applies={"megatron-bridge": ">=0.3.1"},
    tested=(
        {"megatron-bridge": "0.3.1"},
        {"megatron-bridge": "0.4.2"},
        {"megatron-bridge": "0.5.1"},
        {"megatron-bridge": "0.6.2"},
    ),
    needed=(Has("SafeTensorsStateSource.save_generator"),),
    patches=(
        Wrap(
            "SafeTensorsStateSource.save_generator",
            "verl_compat.shims.check.saved:check_save",
            params=("self", "generator", "output_path"),
            home="megatron.bridge.models.hf_pretrained.state",
        ),
    ),
    why=(
        "A save that drops tensors ends without an exception: Bridge 0.3.1 to 0.5.1 leave a whole file out where one "
        "of its tensors is not exported, and print a line. The next load then starts from noise."
    ),
    links=("https://github.com/NVIDIA-NeMo/Megatron-Bridge/pull/4188",),
    keep="a check of what this process does, whatever the release",
)
