"""Value-head and ModelOpt linear layers known to weight conversion on Bridge before 0.5."""

from verl_compat.records import Adapter, Register, Test

ADAPTER = Adapter(
    id="bridge_lt_0_5_module_types",
    kind="backport",
    summary="Value-head and ModelOpt linear layers known to weight conversion on Bridge before 0.5",
    target="megatron.bridge.models.conversion.param_mapping",
    applies={"megatron-bridge": ">=0.3.0,<0.5"},
    tested=(
        {"megatron-bridge": "0.3.1", "megatron-core": "0.16.1"},
        {"megatron-bridge": "0.4.2", "megatron-core": "0.17.1"},
        {"megatron-bridge": "0.4.2", "megatron-core": "0.17.1", "verl": "0.8.0"},
        {"megatron-bridge": "0.4.2", "megatron-core": "0.17.1", "verl": "0.9.1"},
    ),
    needed=(Test("verl_compat.shims.module_types:lacks_module_types"),),
    patches=(
        Register("AutoMapping._MODULE_TYPE_REGISTRY", "replicated", ("LinearForLastLayer",)),
        Register("AutoMapping._MODULE_TYPE_REGISTRY", "column", ("QuantColumnParallelLinear",)),
        Register("AutoMapping._MODULE_TYPE_REGISTRY", "row", ("QuantRowParallelLinear",)),
    ),
    why=(
        "Loading or exporting weights of a value model, or of a ModelOpt QAT model, raises ValueError "
        '"Cannot determine parallelism type": Bridge registers these classes from 0.5.0.'
    ),
    links=(
        "https://github.com/NVIDIA-NeMo/Megatron-Bridge/pull/3813",
        "https://github.com/verl-project/verl/pull/6335",
    ),
    retire_when={"megatron-bridge": ">=0.5"},
)
