"""freeze_moe_router for Bridge before 0.5."""

from verl_compat.records import Adapter, Add, Lacks

ADAPTER = Adapter(
    id="bridge_lt_0_5_freeze_moe_router",
    kind="backport",
    summary="freeze_moe_router for Bridge before 0.5",
    target="megatron.bridge.training.utils.train_utils",
    applies={"megatron-bridge": ">=0.3.0,<0.5"},
    tested=(
        {"megatron-bridge": "0.3.1", "megatron-core": "0.16.1"},
        {"megatron-bridge": "0.4.2", "megatron-core": "0.17.1"},
        {"megatron-bridge": "0.4.2", "megatron-core": "0.17.1", "verl": "0.8.0"},
        {"megatron-bridge": "0.4.2", "megatron-core": "0.17.1", "verl": "0.9.1"},
    ),
    needed=(Lacks("freeze_moe_router"),),
    patches=(Add("freeze_moe_router", "verl_compat.shims.moe_router:freeze_moe_router"),),
    why=(
        "verl 0.8 stops at ImportError on `import verl.models.mcore.bridge`. verl 0.9's fall-back raises "
        "AttributeError on a router without bias (None from megatron-core 0.15 on)."
    ),
    links=(
        "https://github.com/NVIDIA-NeMo/Megatron-Bridge/pull/3813",
        "https://github.com/verl-project/verl/pull/6335",
        "https://github.com/verl-project/verl/pull/6682",
    ),
    retire_when={"megatron-bridge": ">=0.5"},
)
