"""checkpoint.async_save=True with FSDP, which never writes the tracker file."""

from verl_compat.records import Adapter, Has, Wrap

ADAPTER = Adapter(
    id="verl_fsdp_async_save",
    kind="diagnose",
    summary="checkpoint.async_save=True with FSDP, which never writes the tracker file",
    target="verl.utils.checkpoint.fsdp_checkpoint_manager",
    applies={"verl": ">=0.7.0"},
    tested=(
        {"verl": "0.8.0"},
        {"verl": "0.9.1"},
    ),
    needed=(Has("FSDPCheckpointManager.__init__"),),
    patches=(Wrap("FSDPCheckpointManager.__init__", "verl_compat.shims.diagnose_checkpoint:warn_fsdp_async_save"),),
    why=(
        "The save is synchronous, but latest_checkpointed_iteration.txt is left to an asynchronous "
        "save that does not exist: a restart begins at step 0 without a word."
    ),
    links=(
        "https://github.com/verl-project/verl/issues/7952",
        "https://github.com/verl-project/verl/pull/7955",
    ),
    keep="verl 0.9.1 still accepts the setting",
    reports=(
        "verl#7952",
        "verl#7955",
    ),
)
