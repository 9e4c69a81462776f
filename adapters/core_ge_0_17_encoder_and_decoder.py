"""ModelType.encoder_and_decoder for megatron-core 0.17 and newer: equal to no real model type."""

from verl_compat.records import Adapter, Add, Lacks

ADAPTER = Adapter(
    id="core_ge_0_17_encoder_and_decoder",
    kind="backport",
    summary="ModelType.encoder_and_decoder for megatron-core 0.17 and newer: equal to no real model type",
    target="megatron.core.enums",
    applies={"megatron-core": ">=0.17"},
    tested=(
        {"megatron-core": "0.17.1"},
        {"megatron-core": "0.18.2"},
        {"megatron-core": "0.19.2"},
    ),
    needed=(Lacks("ModelType.encoder_and_decoder"),),
    patches=(Add("ModelType.encoder_and_decoder", "verl_compat.shims.model_type:ENCODER_AND_DECODER"),),
    why=(
        "verl 0.7 and 0.8, mbridge 0.15.1 and Bridge 0.3.x compare the model type with it while they "
        "build a model: AttributeError from core 0.17 on. No enum member is added, and no comparison "
        "with a real type is true."
    ),
    links=(
        "https://github.com/verl-project/verl/issues/6936",
        "https://github.com/verl-project/verl/pull/6927",
        "https://github.com/ISEEKYAN/mbridge/issues/155",
    ),
    keep="core will not have it again; verl asks for it by getattr from 0.9.0, the others still by name",
    reports=(
        "verl#6936",
        "verl#6927",
        "mbridge#155",
    ),
)
