"""Asynchronous saves use megatron-core's own writer where nvidia-resiliency-ext is not installed."""

from verl_compat.records import Adapter, Replace, Test

ADAPTER = Adapter(
    id="verl_async_save_strategy",
    kind="guard",
    summary=("Asynchronous saves use megatron-core's own writer where nvidia-resiliency-ext is not installed"),
    target="verl.utils.megatron.dist_checkpointing",
    applies={"verl": ">=0.7.0", "megatron-core": ">=0.17"},
    tested=(
        {"verl": "0.9.1", "megatron-core": "0.17.1"},
        {"verl": "0.9.1", "megatron-core": "0.18.2"},
        {"verl": "0.9.1", "megatron-core": "0.19.2"},
    ),
    needed=(Test("verl_compat.shims.async_save:prefers_nvrx"),),
    patches=(Replace("dist_checkpointing", "verl_compat.shims.async_save:with_usable_strategy", make=True, data=True),),
    why=(
        "core 0.17 writes asynchronous saves with nvidia-resiliency-ext unless told otherwise, and "
        "verl tells it nothing: ModuleNotFoundError at the first save with "
        "checkpoint.async_save=True."
    ),
    links=("https://github.com/NVIDIA/Megatron-LM/releases/tag/core_v0.17.0",),
    keep="verl 0.9.1 passes no async_strategy",
)
