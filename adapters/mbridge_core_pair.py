"""Says which megatron-core mbridge needs, when its import fails."""

from verl_compat.records import Adapter, OnImportError

ADAPTER = Adapter(
    id="mbridge_core_pair",
    kind="diagnose",
    summary="Says which megatron-core mbridge needs, when its import fails",
    target="mbridge",
    applies={"mbridge": ">=0.15"},
    tested=({"mbridge": "0.15.1"},),
    needed=(),
    patches=(OnImportError("verl_compat.shims.version_pairs:mbridge_import_failed"),),
    why=("mbridge 0.15.1 imports names that megatron-core 0.12 lacks (get_tensor_model_parallel_group_if_none)."),
    links=("https://github.com/ISEEKYAN/mbridge/issues/50",),
    keep="mbridge states no core range",
    reports=("mbridge#50",),
)
