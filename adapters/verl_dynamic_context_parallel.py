"""dynamic_context_parallel=True, which no released megatron-core has."""

from verl_compat.records import Adapter, Has, Wrap

ADAPTER = Adapter(
    id="verl_dynamic_context_parallel",
    kind="diagnose",
    summary="dynamic_context_parallel=True, which no released megatron-core has",
    target="verl.workers.engine.megatron.transformer_impl",
    applies={"verl": ">=0.8.0"},
    tested=(
        {"verl": "0.8.0"},
        {"verl": "0.9.1"},
    ),
    needed=(Has("MegatronEngine._init_device_mesh"),),
    patches=(
        Wrap("MegatronEngine._init_device_mesh", "verl_compat.shims.diagnose_model:warn_dynamic_context_parallel"),
    ),
    why=("verl stops with an assertion that does not say which megatron-core would do; no release up to 0.19.2 does."),
    links=("https://github.com/verl-project/verl/pull/6555",),
    keep="no released core has it",
    reports=("verl#6555",),
)
