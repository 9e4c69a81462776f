"""ActorRolloutRefWorker.async_calls_finalize_fn_exec, which verl's trainer calls to finalise saves."""

from verl_compat.records import Adapter, Add, Has, Lacks

ADAPTER = Adapter(
    id="verl_ge_0_8_async_save_finalize",
    kind="backport",
    summary=("ActorRolloutRefWorker.async_calls_finalize_fn_exec, which verl's trainer calls to finalise saves"),
    target="verl.workers.engine_workers",
    applies={"verl": ">=0.8.0", "megatron-core": ">=0.14"},
    tested=(
        {"verl": "0.8.0", "megatron-core": "0.17.1"},
        {"verl": "0.9.1", "megatron-core": "0.18.2"},
    ),
    needed=(
        Has("ActorRolloutRefWorker", "register", "Dispatch"),
        Lacks("ActorRolloutRefWorker.async_calls_finalize_fn_exec"),
    ),
    patches=(
        Add(
            "ActorRolloutRefWorker.async_calls_finalize_fn_exec",
            "verl_compat.shims.async_save:make_finalizer",
            make=True,
        ),
    ),
    why=(
        "verl's trainer finalises asynchronous saves through this method if the worker has it. verl "
        "0.7's worker had; the engine worker of 0.8 and 0.9 has not, so that no asynchronous Megatron "
        "save is ever finalised, on any core: no metadata.json, no latest_checkpointed_iteration.txt, "
        "a silent restart from step 0."
    ),
    links=(
        "https://github.com/verl-project/verl/blob/v0.9.1/verl/workers/engine_workers.py",
        "https://github.com/verl-project/verl/issues/7952",
    ),
    keep="verl 0.9.1's worker still lacks it",
)
