"""As bridge_core_pair, where only Bridge's training configuration does not fit the core."""

from verl_compat.records import Adapter, OnImportError

ADAPTER = Adapter(
    id="bridge_core_pair_training",
    kind="diagnose",
    summary="As bridge_core_pair, where only Bridge's training configuration does not fit the core",
    target="megatron.bridge.training.config",
    applies={"megatron-bridge": ">=0.3.0"},
    tested=({"megatron-bridge": "0.4.2"},),
    needed=(),
    patches=(OnImportError("verl_compat.shims.version_pairs:bridge_import_failed"),),
    why=(
        "Bridge 0.4 imports on megatron-core 0.16, which has no megatron.training, and fails when "
        "verl asks for the training configuration."
    ),
    links=(
        "https://github.com/NVIDIA-NeMo/Megatron-Bridge/issues/2075",
        "https://github.com/modelscope/ms-swift/pull/10017",
    ),
    keep="pip cannot know the pairs as long as Bridge's metadata does not state them",
    reports=(
        "Megatron-Bridge#2075",
        "ms-swift#10017",
    ),
)
