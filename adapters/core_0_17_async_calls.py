"""dist_checkpointing.strategies.base.async_calls for megatron-core 0.17 and 0.18."""

from verl_compat.records import Adapter, Add, Lacks

ADAPTER = Adapter(
    id="core_0_17_async_calls",
    kind="backport",
    summary="dist_checkpointing.strategies.base.async_calls for megatron-core 0.17 and 0.18",
    target="megatron.core.dist_checkpointing.strategies.base",
    applies={"megatron-core": ">=0.17,<0.19"},
    tested=(
        {"megatron-core": "0.17.1"},
        {"megatron-core": "0.18.2"},
    ),
    needed=(Lacks("async_calls"),),
    patches=(Add("async_calls", "verl_compat.shims.async_save:async_calls"),),
    why=(
        "Every verl release schedules asynchronous checkpoint saves (checkpoint.async_save) on it, "
        "and verl 0.7 finalises them through it; core has no process-wide queue from 0.17 on: "
        "ImportError at the first save."
    ),
    links=(
        "https://github.com/NVIDIA/Megatron-LM/releases/tag/core_v0.17.0",
        "https://github.com/verl-project/verl/blob/v0.9.1/verl/utils/checkpoint/megatron_checkpoint_manager.py",
    ),
    retire_when={"megatron-core": ">=0.19"},
)
