"""What each provider was built with, for reports."""

from verl_compat.records import Adapter, Has, Wrap

ADAPTER = Adapter(
    id="bridge_provider_settings",
    kind="diagnose",
    summary="Notes attention backend, MoE dispatcher, load balancing and parallel sizes of each model as built",
    target="megatron.bridge.models.model_provider",
    applies={"megatron-bridge": ">=0.3.0"},
    tested=(
        {"megatron-bridge": "0.3.1", "megatron-core": "0.16.1"},
        {"megatron-bridge": "0.4.2", "megatron-core": "0.17.1"},
        {"megatron-bridge": "0.5.1", "megatron-core": "0.18.2"},
        {"megatron-bridge": "0.6.2", "megatron-core": "0.19.2"},
    ),
    needed=(Has("ModelProviderMixin.provide_distributed_model"),),
    patches=(
        Wrap(
            "ModelProviderMixin.provide_distributed_model",
            "verl_compat.shims.provider_settings:provide_and_record",
            params=("self",),
            decorated=True,
        ),
    ),
    why=(
        "These values are decided by the Hugging Face config, by Bridge, by verl and by the user. With the "
        "wrong one the reward stays flat or the loss is off, without any message."
    ),
    links=("https://github.com/verl-project/verl/issues/5187",),
    keep="Bridge reports them nowhere",
    reports=("verl#5187",),
)
