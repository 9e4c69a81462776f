"""verl 0.7.0's patched_routing takes the padding_mask that megatron-core 0.16 and newer pass."""

from verl_compat.records import Adapter, Replace, Test

ADAPTER = Adapter(
    id="verl_0_7_0_routing_padding_mask",
    kind="guard",
    summary="verl 0.7.0's patched_routing takes the padding_mask that megatron-core 0.16 and newer pass",
    target="verl.utils.megatron.router_replay_patch",
    applies={"verl": ">=0.7.0,<0.7.1", "megatron-core": ">=0.16"},
    tested=(
        {"verl": "0.7.0", "megatron-core": "0.16.1"},
        {"verl": "0.7.0", "megatron-core": "0.19.2"},
    ),
    needed=(Test("verl_compat.shims.router_replay:drops_padding_mask"),),
    patches=(
        Replace(
            "patched_routing", "verl_compat.shims.router_replay:make_routing", make=True, params=("self", "logits")
        ),
    ),
    why=(
        "With routing replay switched on, the first MoE layer raises TypeError: patched_routing() got "
        "an unexpected keyword argument 'padding_mask'."
    ),
    links=("https://github.com/verl-project/verl/pull/5155",),
    retire_when={"verl": ">=0.7.1"},
    reports=("verl#5155",),
)
