"""Megatron-Bridge makes its conversion plan anew for each export."""

from verl_compat.records import Adapter, Has, Wrap

ADAPTER = Adapter(
    id="bridge_plan_cache",
    kind="cache",
    summary="Weight exports plan once per model; re-planned, by all ranks together, when the model changes",
    target="megatron.bridge.models.conversion.auto_bridge",
    applies={"megatron-bridge": ">=0.3.0"},
    tested=(
        {"megatron-bridge": "0.3.1", "megatron-core": "0.16.1"},
        {"megatron-bridge": "0.4.2", "megatron-core": "0.17.1"},
        {"megatron-bridge": "0.5.1", "megatron-core": "0.18.2"},
        {"megatron-bridge": "0.6.2", "megatron-core": "0.19.2"},
    ),
    needed=(Has("AutoBridge.export_hf_weights", "AutoBridge.export_adapter_weights", "AutoBridge._model_bridge"),),
    patches=(
        Wrap(
            path="AutoBridge.export_hf_weights",
            wrapper="verl_compat.shims.plan_cache:export_hf_weights",
            params=("self", "model", "cpu", "show_progress", "conversion_tasks", "merge_adapter_weights"),
        ),
        Wrap(
            path="AutoBridge.export_adapter_weights",
            wrapper="verl_compat.shims.plan_cache:export_adapter_weights",
            params=("self", "model", "cpu", "show_progress"),
        ),
    ),
    why=(
        "Every Bridge release makes its conversion plan anew for each weight sync, with one or more object "
        "collectives per parameter under pipeline parallelism: 12.5 of 20.5 s per step in verl PR #7348's "
        "measurement. verl 0.7 and 0.8 never keep a plan; 0.9 keeps one by hand, not for LoRA, and it goes stale "
        "in silence."
    ),
    links=(
        "https://github.com/volcengine/verl/pull/7348",
        "https://github.com/NovaSky-AI/SkyRL/pull/1345",
    ),
    keep="no Bridge release keeps its plan between exports",
    reports=("verl#7348", "SkyRL#1345"),
)
