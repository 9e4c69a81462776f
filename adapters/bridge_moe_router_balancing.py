"""The MoE router's load balancing as the model is built with it, where an auxiliary loss is in force."""

from verl_compat.records import Adapter, Has, Wrap

ADAPTER = Adapter(
    id="bridge_moe_router_balancing",
    kind="diagnose",
    summary=("The MoE router's load balancing as the model is built with it, where an auxiliary loss is in force"),
    target="megatron.bridge.models.model_provider",
    applies={"verl": ">=0.7.0", "megatron-bridge": ">=0.3.0"},
    tested=(
        {"verl": "0.8.0", "megatron-bridge": "0.3.1"},
        {"verl": "0.8.0", "megatron-bridge": "0.6.2"},
        {"verl": "0.9.1", "megatron-bridge": "0.4.2"},
    ),
    needed=(Has("ModelProviderMixin.provide_distributed_model"),),
    patches=(
        Wrap("ModelProviderMixin.provide_distributed_model", "verl_compat.shims.diagnose_model:warn_router_balancing"),
    ),
    why=(
        "Bridge's defaults (aux_loss, global_aux_loss) and mbridge's differ; verl sets \"none\" unless "
        "override_transformer_config says otherwise. A reward that stays flat with Bridge only was "
        "reported, and nothing shows what was in force."
    ),
    links=("https://github.com/verl-project/verl/issues/5187",),
    keep="the cause of the report is not known",
    reports=("verl#5187",),
)
