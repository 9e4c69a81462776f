"""Says which megatron-core an installed Bridge goes with, when its import fails."""

from verl_compat.records import Adapter, OnImportError

ADAPTER = Adapter(
    id="bridge_core_pair",
    kind="diagnose",
    summary="Says which megatron-core an installed Bridge goes with, when its import fails",
    target="megatron.bridge",
    applies={"megatron-bridge": ">=0.3.0"},
    tested=(
        {"megatron-bridge": "0.3.1"},
        {"megatron-bridge": "0.4.2"},
        {"megatron-bridge": "0.5.1"},
        {"megatron-bridge": "0.6.2"},
    ),
    needed=(),
    patches=(OnImportError("verl_compat.shims.version_pairs:bridge_import_failed"),),
    why=(
        "A Bridge imports dozens of names that only its own core release has. pip does not object "
        "(--no-deps; only Bridge 0.3 caps core), and the ImportError names one of them and no "
        "version."
    ),
    links=(
        "https://github.com/NVIDIA-NeMo/Megatron-Bridge/issues/2075",
        "https://github.com/NVIDIA-NeMo/Megatron-Bridge/issues/1168",
        "https://github.com/NVIDIA-NeMo/Megatron-Bridge/issues/5148",
        "https://github.com/modelscope/ms-swift/pull/10017",
    ),
    keep="pip cannot know the pairs as long as Bridge's metadata does not state them",
    reports=(
        "Megatron-Bridge#2075",
        "Megatron-Bridge#1168",
        "Megatron-Bridge#5148",
        "Megatron-Bridge#5193",
        "ms-swift#10017",
    ),
)
