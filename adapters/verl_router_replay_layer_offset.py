"""verl's routing replay asks megatron-core 0.12 to 0.14 for a layer offset by pp_rank and vp_stage."""

from verl_compat.records import Adapter, Replace, Test

ADAPTER = Adapter(
    id="verl_router_replay_layer_offset",
    kind="guard",
    summary=("verl's routing replay asks megatron-core 0.12 to 0.14 for a layer offset by pp_rank and vp_stage"),
    target="verl.utils.megatron.router_replay_utils",
    applies={"verl": ">=0.7.0", "megatron-core": ">=0.12,<0.15"},
    tested=(
        {"verl": "0.7.1", "megatron-core": "0.14.0"},
        {"verl": "0.9.1", "megatron-core": "0.14.0"},
    ),
    needed=(Test("verl_compat.shims.router_replay:lacks_pp_rank"),),
    patches=(
        Replace(
            "get_transformer_layer_offset",
            "verl_compat.shims.router_replay:make_layer_offset",
            make=True,
            params=("config",),
            home="megatron.core.transformer.transformer_layer",
        ),
    ),
    why=(
        "verl 0.7.1 passes pp_rank: TypeError. verl 0.8 and newer drop vp_stage together with "
        "pp_rank, so that with a virtual pipeline the layers of the wrong stage are counted, without "
        "a word."
    ),
    links=("https://github.com/verl-project/verl/issues/5727",),
    retire_when={"megatron-core": ">=0.15"},
    reports=("verl#5727",),
)
