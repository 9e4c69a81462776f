"""Amax of zero, None, or of one tensor parallel shard in verl's ModelOpt weight exporter (0.8 and newer)."""

from verl_compat.records import Adapter, Has, Wrap

_Q = "verl_compat.shims.qat_export"

ADAPTER = Adapter(
    id="verl_ge_0_8_qat_exporter_amax",
    kind="guard",
    summary="NVFP4 export of all-zero weights, missing amax and tensor parallel shards: finite, right scales",
    target="verl.utils.modelopt.qat_weight_exporter",
    applies={"verl": ">=0.8.0,<0.10"},
    tested=({"verl": "0.8.0"}, {"verl": "0.9.1"}),
    needed=(Has("QATWeightExporter._quantize_nvfp4", "QATWeightExporter._collect_metadata", "_compute_input_scale"),),
    patches=(
        Wrap("QATWeightExporter._quantize_nvfp4", f"{_Q}:quantize_nvfp4", params=("self", "name", "weight", "meta")),
        Wrap("QATWeightExporter._collect_metadata", f"{_Q}:collect_metadata", params=("self", "actor_module")),
        Wrap("_compute_input_scale", f"{_Q}:compute_input_scale", params=("meta",)),
    ),
    why=(
        "an all-zero weight (a dead expert) has amax 0 and is exported with NaN block scales, which vLLM turns into a "
        "NaN layer; amax None is an AttributeError; each tensor parallel rank quantises the whole weight with the "
        "amax of its own shard."
    ),
    links=(
        "https://github.com/verl-project/verl/pull/6335",
        "https://github.com/verl-project/verl/blob/v0.9.1/verl/utils/modelopt/qat_weight_exporter.py",
    ),
    keep="no verl release guards them",
)
