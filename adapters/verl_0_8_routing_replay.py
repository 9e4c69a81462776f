"""Routing replay on Bridge 0.5 and newer for verl 0.8."""

from verl_compat.records import Adapter, Has, Wrap

ADAPTER = Adapter(
    id="verl_0_8_routing_replay",
    kind="rename",
    summary="Routing replay is switched on after the provider is set up, by the name that it has, on verl 0.8",
    target="verl.workers.engine.megatron.transformer_impl",
    applies={"verl": ">=0.8.0,<0.9"},
    tested=({"verl": "0.8.0"},),
    needed=(Has("MegatronEngine._build_tf_config"),),
    patches=(
        Wrap(
            "MegatronEngine._build_tf_config",
            "verl_compat.shims.verl_engine:build_tf_config_with_replay",
            params=("self",),
        ),
    ),
    why=(
        "verl 0.8 passes enable_routing_replay as a provider override. No megatron-core release has that "
        "field (0.16 and newer have moe_enable_routing_replay): AttributeError on every Bridge that checks "
        "names."
    ),
    links=("https://github.com/verl-project/verl/pull/6335",),
    retire_when={"verl": ">=0.9"},
)
