"""verl gets (name, tensor) pairs from a Bridge that yields wider tuples."""

from verl_compat.records import Adapter, Has, Test, Wrap

ADAPTER = Adapter(
    id="verl_weight_tuple_width",
    kind="return-shape",
    summary="verl gets (name, tensor) pairs from a Bridge that yields wider tuples",
    target="verl.workers.engine.megatron.transformer_impl",
    applies={"verl": ">=0.7.0", "megatron-bridge": ">=0.3.0"},
    tested=({"verl": "0.9.1", "megatron-bridge": "0.6.2"},),
    needed=(
        Has("MegatronEngine.get_per_tensor_param"),
        Test("verl_compat.shims.verl_repairs:has_wide_weight_tuples"),
    ),
    patches=(Wrap("MegatronEngine.get_per_tensor_param", "verl_compat.shims.verl_repairs:two_fields"),),
    why=(
        "Bridge's main branch and forks add a third field to exported weights: ValueError: too many "
        "values to unpack (expected 2). No release up to 0.6.2 does."
    ),
    links=(
        "https://github.com/NVIDIA-NeMo/Megatron-Bridge/issues/1996",
        "https://github.com/radixark/miles/pull/3291",
    ),
    keep="no released Bridge has it yet",
    reports=(
        "Megatron-Bridge#1996",
        "miles#3291",
    ),
)
