"""Dynamic context parallelism is refused clearly on verl 0.8."""

from verl_compat.records import Adapter, Has, Wrap

ADAPTER = Adapter(
    id="verl_0_8_dynamic_cp",
    kind="diagnose",
    summary="verl 0.8 refuses dynamic_context_parallel=True clearly, before a model is built, where core lacks it",
    target="verl.workers.engine.megatron.transformer_impl",
    applies={"verl": ">=0.8.0,<0.9"},
    tested=({"verl": "0.8.0"},),
    needed=(Has("MegatronEngine._init_device_mesh"),),
    patches=(
        Wrap(
            "MegatronEngine._init_device_mesh",
            "verl_compat.shims.verl_engine:refuse_dynamic_cp_first",
            params=("self",),
        ),
    ),
    why=(
        "verl 0.8 asks to update megatron-core to the latest version; no released version has it. From 0.9 on "
        "verl names the commit itself."
    ),
    links=(
        "https://github.com/verl-project/verl/pull/6555",
        "https://github.com/NVIDIA/Megatron-LM/pull/5154",
    ),
    retire_when={"verl": ">=0.9"},
    reports=("verl#6555",),
)
