"""Says what to import first when Bridge is imported in a circle."""

from verl_compat.records import Adapter, OnImportError

ADAPTER = Adapter(
    id="bridge_circular_import",
    kind="diagnose",
    summary="Says what to import first when Bridge is imported in a circle",
    target="megatron.bridge.models",
    applies={"megatron-bridge": ">=0.3.0"},
    tested=({"megatron-bridge": "0.5.1"},),
    needed=(),
    patches=(OnImportError("verl_compat.shims.version_pairs:circular_import"),),
    why=(
        "ModelOpt's plugins and transformers 5.4 and newer import Bridge while Bridge imports them: "
        '"cannot import name ... from partially initialized module".'
    ),
    links=(
        "https://github.com/NVIDIA-NeMo/Megatron-Bridge/pull/5192",
        "https://github.com/verl-project/verl/pull/6318",
    ),
    keep="depends on what else is imported first",
    reports=(
        "Megatron-Bridge#5192",
        "verl#6318",
    ),
)
