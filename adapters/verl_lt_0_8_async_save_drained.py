"""verl 0.7's own finaliser tells verl_async_save_finish that a trainer is there."""

from verl_compat.records import Adapter, Has, Wrap

ADAPTER = Adapter(
    id="verl_lt_0_8_async_save_drained",
    kind="guard",
    summary="verl 0.7's own finaliser tells verl_async_save_finish that a trainer is there",
    target="verl.workers.megatron_workers",
    applies={"verl": ">=0.7.0,<0.8", "megatron-core": ">=0.14"},
    tested=({"verl": "0.7.1", "megatron-core": "0.17.1"},),
    needed=(Has("ActorRolloutRefWorker.async_calls_finalize_fn_exec"),),
    patches=(
        Wrap(
            "ActorRolloutRefWorker.async_calls_finalize_fn_exec",
            "verl_compat.shims.async_save:note_drain",
            decorated=True,
        ),
    ),
    why=(
        "verl_async_save_finish finishes each save at once unless a trainer finalises them; verl 0.7's "
        "worker has that method of its own, so the trainer's call is seen there and saves stay asynchronous."
    ),
    links=("https://github.com/verl-project/verl/blob/v0.7.1/verl/workers/megatron_workers.py",),
    retire_when={"verl": ">=0.8"},
)
