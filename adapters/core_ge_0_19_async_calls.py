"""The module dist_checkpointing.strategies.base with async_calls, for megatron-core 0.19 and newer."""

from verl_compat.records import Adapter, Provide

ADAPTER = Adapter(
    id="core_ge_0_19_async_calls",
    kind="backport",
    summary=("The module dist_checkpointing.strategies.base with async_calls, for megatron-core 0.19 and newer"),
    target="megatron.core.dist_checkpointing.strategies.base",
    applies={"megatron-core": ">=0.19"},
    tested=({"megatron-core": "0.19.2"},),
    needed=(),
    patches=(Provide({"async_calls": "verl_compat.shims.async_save:async_calls"}),),
    why=(
        "As core_0_17_async_calls; core 0.19 removed the whole module: ModuleNotFoundError at the "
        "first asynchronous save."
    ),
    links=(
        "https://github.com/NVIDIA/Megatron-LM/releases/tag/core_v0.19.0",
        "https://github.com/verl-project/verl/blob/v0.9.1/verl/utils/checkpoint/megatron_checkpoint_manager.py",
    ),
    keep="verl 0.9.1 still imports it",
)
