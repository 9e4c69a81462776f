"""verl's own value-model and freeze-router hooks, where it uses them: 0.7.x, and 0.9.x after a fall-back."""

from verl_compat.records import Adapter, Replace, Test, Wrap

ADAPTER = Adapter(
    id="verl_own_value_model_hooks",
    kind="guard",
    summary="verl's own value-head hook returns the model, its freeze_moe_router takes a router without bias",
    target="verl.models.mcore.bridge",
    applies={"verl": ">=0.7.0", "megatron-bridge": ">=0.3.0"},
    tested=(
        {"verl": "0.7.1", "megatron-bridge": "0.4.2", "megatron-core": "0.17.1"},
        {"verl": "0.9.1", "megatron-bridge": "0.4.2", "megatron-core": "0.17.1"},
    ),
    needed=(Test("verl_compat.shims.value_head:has_own_value_model"),),
    patches=(
        Wrap(
            "make_value_model",
            "verl_compat.shims.value_head:chain_value_model",
            params=("hidden_size", "sequence_parallel"),
        ),
        Replace("freeze_moe_router", "verl_compat.shims.moe_router:freeze_moe_router", params=("model",)),
    ),
    why=(
        "With freeze_moe_router set, a value model's router is trained all the same: verl's value-head "
        "hook returns None and Bridge hands that to the next hook. Passed the model, verl's "
        "freeze_moe_router (actors as well) raises AttributeError, since megatron-core from 0.15 on sets "
        "router.bias to None. verl 0.7 always uses its own hooks; verl 0.9 when Bridge's train_utils "
        "cannot be imported (Bridge before 0.5, no tensorboard)."
    ),
    links=(
        "https://github.com/verl-project/verl/pull/6335",
        "https://github.com/verl-project/verl/pull/6682",
        "https://github.com/NVIDIA-NeMo/Megatron-Bridge/pull/3813",
    ),
    keep="verl 0.9.1 still carries them, and falls back on them with any Bridge where tensorboard is missing",
)
