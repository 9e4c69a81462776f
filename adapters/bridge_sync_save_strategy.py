"""Explains 'cannot pickle' when Bridge saves synchronously with an asynchronous strategy."""

from verl_compat.records import Adapter, Has, Wrap

ADAPTER = Adapter(
    id="bridge_sync_save_strategy",
    kind="diagnose",
    summary="Explains 'cannot pickle' when Bridge saves synchronously with an asynchronous strategy",
    target="megatron.bridge.training.checkpointing",
    applies={"megatron-bridge": ">=0.5.0"},
    tested=(
        {"megatron-bridge": "0.5.1"},
        {"megatron-bridge": "0.6.2"},
    ),
    needed=(Has("save_checkpoint"),),
    patches=(Wrap("save_checkpoint", "verl_compat.shims.diagnose_checkpoint:explain_sync_save_strategy"),),
    why=("checkpoint.async_strategy is not passed on when async_save is off, and core's default cannot be pickled."),
    links=("https://github.com/NVIDIA-NeMo/Megatron-Bridge/issues/4639",),
    keep="Bridge 0.6.2 still does so",
    reports=("Megatron-Bridge#4639",),
)
