"""megatron-core's SwiGLU sharded factory: kept on record, needed by no release."""

from verl_compat.records import Adapter, Check, Test

ADAPTER = Adapter(
    id="core_swiglu_sharded_factory",
    kind="diagnose",
    summary="Says so if megatron-core cannot write SwiGLU weights as single shards; no release since 0.14 needs it",
    target="megatron.core.transformer.mlp",
    applies={"megatron-core": ">=0.14.0"},
    tested=(
        {"megatron-core": "0.16.1"},
        {"megatron-core": "0.17.1"},
        {"megatron-core": "0.18.2"},
        {"megatron-core": "0.19.2"},
    ),
    needed=(Test("verl_compat.shims.qat_layers:swiglu_factory_is_old"),),
    patches=(Check("verl_compat.shims.qat_layers:explain_old_swiglu_factory"),),
    why=(
        "verl once replaced apply_swiglu_sharded_factory for QAT checkpoints. Every released core accepts "
        "singleton_local_shards; replacing it would break 0.19 (TypeError) and drop flattened ranges on 0.14 "
        "and 0.15."
    ),
    links=("https://github.com/verl-project/verl/pull/6335",),
    keep="not needed by any release: it documents why, and tells if that changes",
)
