"""Stacked expert weights ([E, 2I, H]) are sent to the rollout as one tensor per expert and projection."""

from verl_compat.records import Adapter, Has, Wrap

ADAPTER = Adapter(
    id="verl_split_stacked_experts",
    kind="default",
    summary=("Stacked expert weights ([E, 2I, H]) are sent to the rollout as one tensor per expert and projection"),
    target="verl.workers.engine.megatron.transformer_impl",
    applies={"verl": ">=0.7.0"},
    tested=({"verl": "0.9.1"},),
    needed=(Has("MegatronEngine.get_per_tensor_param"),),
    patches=(Wrap("MegatronEngine.get_per_tensor_param", "verl_compat.shims.verl_repairs:with_split_experts"),),
    why=(
        "vLLM's layerwise reload takes no stacked expert tensors: ValueError: shard_dim=0 is not a "
        "valid data dimension for a 3D tensor. Models whose vLLM loader wants them stacked need them "
        "as they are, so it must be asked for."
    ),
    links=("https://github.com/NVIDIA-NeMo/RL/pull/3403",),
    keep="depends on the model's loader in vLLM",
    default=False,
    reports=("NeMo-RL#3403",),
)
