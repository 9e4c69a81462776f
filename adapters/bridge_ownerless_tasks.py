"""Conversion tasks whose weight is not in the checkpoint are dropped on every rank alike."""

from verl_compat.records import Adapter, Has, Wrap

ADAPTER = Adapter(
    id="bridge_ownerless_tasks",
    kind="guard",
    summary="Conversion tasks whose weight is not in the checkpoint are dropped on every rank alike",
    target="megatron.bridge.models.conversion.model_bridge",
    applies={"megatron-bridge": ">=0.3.0"},
    tested=(
        {"megatron-bridge": "0.3.1"},
        {"megatron-bridge": "0.4.2"},
        {"megatron-bridge": "0.5.1"},
        {"megatron-bridge": "0.6.2"},
    ),
    needed=(Has("MegatronModelBridge.build_conversion_tasks"),),
    patches=(
        Wrap(
            "MegatronModelBridge.build_conversion_tasks",
            "verl_compat.shims.verl_repairs:drop_ownerless",
            params=("self", "hf_pretrained", "megatron_model"),
        ),
    ),
    why=(
        "A parameter that the Hugging Face checkpoint has no weight for gets a task without owner; "
        "with pipeline parallelism the first export raises ValueError: Object must exist on at least "
        "one PP rank."
    ),
    links=("https://github.com/NovaSky-AI/SkyRL/pull/2042",),
    keep="Bridge 0.6.2 still makes such tasks",
    reports=("SkyRL#2042",),
)
