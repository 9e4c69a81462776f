"""verl 0.8's asynchronous saves are scheduled on a queue that is kept."""

from verl_compat.records import Adapter, Wrap

ADAPTER = Adapter(
    id="verl_0_8_async_save_queue",
    kind="guard",
    summary="verl 0.8's asynchronous saves are scheduled on a queue that is kept",
    target="verl.utils.checkpoint.megatron_checkpoint_manager",
    applies={"verl": ">=0.8.0,<0.9", "megatron-core": ">=0.14"},
    tested=(
        {"verl": "0.8.0", "megatron-core": "0.16.1"},
        {"verl": "0.8.0", "megatron-core": "0.17.1"},
        {"verl": "0.8.0", "megatron-core": "0.18.2"},
        {"verl": "0.8.0", "megatron-core": "0.19.2"},
    ),
    needed=(),
    patches=(
        Wrap(
            "save_dist_checkpointing",
            "verl_compat.shims.async_save:keep_request",
            home="verl.utils.megatron.dist_checkpointing",
        ),
    ),
    why=(
        "verl 0.8 schedules the save on a queue made for the call and drops it: the save is never "
        "finalised, so the checkpoint has no metadata.json and latest_checkpointed_iteration.txt is "
        "never written."
    ),
    links=(
        "https://github.com/verl-project/verl/blob/v0.8.0/verl/utils/checkpoint/megatron_checkpoint_manager.py",
        "https://github.com/verl-project/verl/issues/7952",
    ),
    retire_when={"verl": ">=0.9"},
)
