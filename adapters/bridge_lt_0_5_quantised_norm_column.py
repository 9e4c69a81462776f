"""Parallelism of quantised LayerNorm-column layers for Bridge before 0.5."""

from verl_compat.records import Adapter, Wrap

ADAPTER = Adapter(
    id="bridge_lt_0_5_quantised_norm_column",
    kind="backport",
    summary="Quantised LayerNorm-column layers are recognised as column-parallel, for Bridge before 0.5",
    target="megatron.bridge.models.conversion.param_mapping",
    applies={"megatron-bridge": ">=0.3.0,<0.5"},
    tested=(
        {"megatron-bridge": "0.3.1", "megatron-core": "0.16.1"},
        {"megatron-bridge": "0.4.2", "megatron-core": "0.17.1"},
    ),
    needed=(),
    patches=(
        Wrap(
            "AutoMapping._detect_parallelism_type",
            "verl_compat.shims.qat_layers:detect_parallelism",
            params=("self", "module"),
        ),
    ),
    why=(
        "ModelOpt QAT names them QuantTELayerNormColumnParallelLinear. Bridge before 0.5 compares the whole "
        "name and calls their weights replicated, because there is Norm in it: every rank gets the full "
        "weight."
    ),
    links=(
        "https://github.com/NVIDIA-NeMo/Megatron-Bridge/pull/3813",
        "https://github.com/verl-project/verl/pull/6335",
    ),
    retire_when={"megatron-bridge": ">=0.5"},
)
