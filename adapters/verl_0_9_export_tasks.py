"""verl 0.9 keeps its list of conversion tasks without checking it."""

from verl_compat.records import Adapter, Has, Wrap

ADAPTER = Adapter(
    id="verl_0_9_export_tasks",
    kind="cache",
    summary="verl's hand-kept list of conversion tasks goes through the plan cache, so it cannot go stale",
    target="verl.workers.engine.megatron.transformer_impl",
    applies={"verl": ">=0.9.0"},
    tested=({"verl": "0.9.1"},),
    needed=(Has("MegatronEngine._mbridge_export_tasks"),),
    patches=(
        Wrap(
            path="MegatronEngine._mbridge_export_tasks",
            wrapper="verl_compat.shims.plan_verl:export_tasks",
            params=("self",),
        ),
    ),
    why=(
        "verl 0.9 keeps the list of bridge.get_conversion_tasks until the engine is initialised again. After a "
        "dtype change with pipeline parallelism, or after parameters were replaced, it exports wrong weights with "
        "no error. Its resets stay: setting _hf_export_tasks to None makes the next sync plan anew."
    ),
    links=("https://github.com/volcengine/verl/pull/7348",),
    keep="no verl release checks the list before it uses it",
)
