"""LoRA with a base model loaded from a distributed checkpoint."""

from verl_compat.records import Adapter, Has, Wrap

ADAPTER = Adapter(
    id="verl_lora_on_dist_checkpoint",
    kind="diagnose",
    summary="LoRA with a base model loaded from a distributed checkpoint",
    target="verl.workers.engine.megatron.transformer_impl",
    applies={"verl": ">=0.7.0"},
    tested=(
        {"verl": "0.8.0"},
        {"verl": "0.9.1"},
    ),
    needed=(Has("MegatronEngine._build_megatron_module"),),
    patches=(
        Wrap("MegatronEngine._build_megatron_module", "verl_compat.shims.diagnose_model:warn_lora_on_dist_checkpoint"),
    ),
    why=(
        "The sharded state dict holds the adapters by the time that the base checkpoint is loaded; a "
        "checkpoint of the base model has none."
    ),
    links=("https://github.com/radixark/miles/pull/2797",),
    keep="verl 0.9.1 loads in this order",
    reports=("miles#2797",),
)
