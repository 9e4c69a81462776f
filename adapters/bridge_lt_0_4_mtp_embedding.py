"""MTP layers at PP > 1 on Bridge 0.3, which refuses an embedding that two stages own."""

from verl_compat.records import Adapter, Wrap

ADAPTER = Adapter(
    id="bridge_lt_0_4_mtp_embedding",
    kind="diagnose",
    summary="MTP layers at PP > 1 on Bridge 0.3, which refuses an embedding that two stages own",
    target="megatron.bridge.models.model_provider",
    applies={"megatron-bridge": ">=0.3.0,<0.4"},
    tested=({"megatron-bridge": "0.3.1"},),
    needed=(),
    patches=(
        Wrap("ModelProviderMixin.provide_distributed_model", "verl_compat.shims.diagnose_model:warn_mtp_embedding"),
    ),
    why="The first export raises ValueError: the embedding is on more than one PP rank.",
    links=("https://github.com/NVIDIA-NeMo/RL/issues/2471",),
    retire_when={"megatron-bridge": ">=0.4"},
    reports=("NeMo-RL#2471",),
)
