"""All-zero weights in verl's FSDP NVFP4 quantiser (0.7.1 and newer)."""

from verl_compat.records import Adapter, Has, Wrap

ADAPTER = Adapter(
    id="verl_ge_0_7_1_qat_zero_weight",
    kind="guard",
    summary="NVFP4 global scale of an all-zero weight is 1 instead of infinity (FSDP QAT)",
    target="verl.utils.qat.quantizer",
    applies={"verl": ">=0.7.1,<0.10"},
    tested=({"verl": "0.7.1"}, {"verl": "0.8.0"}, {"verl": "0.9.1"}),
    needed=(Has("fuse_global_scales", "compute_blockwise_scale"),),
    patches=(
        Wrap(
            "fuse_global_scales",
            "verl_compat.shims.qat_export:fuse_global_scales",
            params=("layer_global_scales",),
        ),
    ),
    why="amax 0 gives an infinite global scale and NaN block scales: the layer's output is NaN after weight sync",
    links=("https://github.com/verl-project/verl/blob/v0.9.1/verl/utils/qat/quantizer.py",),
    keep="no verl release guards it",
)
