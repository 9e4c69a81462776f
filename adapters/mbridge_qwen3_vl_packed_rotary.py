"""mbridge's Qwen3-VL rotary embedding takes the packing arguments of newer cores."""

from verl_compat.records import Adapter, Test, Wrap

ADAPTER = Adapter(
    id="mbridge_qwen3_vl_packed_rotary",
    kind="guard",
    summary="mbridge's Qwen3-VL rotary embedding takes the packing arguments of newer cores",
    target="mbridge.models.qwen3_vl.rope_utils",
    applies={"mbridge": ">=0.15"},
    tested=({"mbridge": "0.15.1"},),
    needed=(Test("verl_compat.shims.verl_repairs:takes_no_packing"),),
    patches=(Wrap("Qwen3VLMultimodalRotaryEmbedding.forward", "verl_compat.shims.verl_repairs:ignore_packing"),),
    why=(
        "A core newer than mbridge passes packed_seq_params (or cp_group): TypeError in the first "
        "forward pass. Without context parallelism the angles do not depend on it."
    ),
    links=("https://github.com/verl-project/verl/issues/4763",),
    keep="mbridge's main branch adds the arguments one by one",
    reports=("verl#4763",),
)
