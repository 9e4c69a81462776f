"""ModelProviderMixin.apply_overrides_and_finalize for Bridge before 0.5."""

from verl_compat.records import Adapter, Add, Lacks

ADAPTER = Adapter(
    id="bridge_lt_0_5_provider_overrides",
    kind="backport",
    summary="ModelProviderMixin.apply_overrides_and_finalize for Bridge before 0.5",
    target="megatron.bridge.models.model_provider",
    applies={"megatron-bridge": ">=0.3.0,<0.5"},
    tested=(
        {"megatron-bridge": "0.3.1", "megatron-core": "0.16.1"},
        {"megatron-bridge": "0.4.2", "megatron-core": "0.17.1"},
        {"megatron-bridge": "0.4.2", "megatron-core": "0.17.1", "verl": "0.8.0"},
        {"megatron-bridge": "0.4.2", "megatron-core": "0.17.1", "verl": "0.9.1"},
    ),
    needed=(Lacks("ModelProviderMixin.apply_overrides_and_finalize"),),
    patches=(
        Add(
            "ModelProviderMixin.apply_overrides_and_finalize",
            "verl_compat.shims.provider_overrides:apply_overrides_and_finalize",
        ),
    ),
    why=(
        "verl 0.8 calls it unguarded: AttributeError. verl 0.9 falls back on plain setattr, which takes a "
        "misspelt override_transformer_config in silence; verl asks hasattr(provider, ...) first, so it "
        "finds this one."
    ),
    links=(
        "https://github.com/NVIDIA-NeMo/Megatron-Bridge/pull/3866",
        "https://github.com/verl-project/verl/pull/6335",
    ),
    retire_when={"megatron-bridge": ">=0.5"},
    reports=("verl#6682",),
)
