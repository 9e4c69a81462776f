"""Not merged expert LoRA with vLLM, which takes no 3-D adapter tensors."""

from verl_compat.records import Adapter, Wrap

ADAPTER = Adapter(
    id="bridge_ge_0_6_moe_lora_rollout",
    kind="diagnose",
    summary="Not merged expert LoRA with vLLM, which takes no 3-D adapter tensors",
    target="verl.workers.config.megatron_peft",
    applies={"verl": ">=0.7.0", "megatron-bridge": ">=0.6"},
    tested=({"verl": "0.9.1", "megatron-bridge": "0.6.2"},),
    needed=(),
    patches=(
        Wrap(
            "get_peft_cls",
            "verl_compat.shims.diagnose_lora:warn_adapters_of_experts",
            params=("model_config", "bridge", "provider"),
        ),
    ),
    why="vLLM's add_lora rejects the 3-D expert adapters at step 0.",
    links=("https://github.com/NovaSky-AI/SkyRL/issues/1852",),
    keep="open upstream",
    reports=("SkyRL#1852",),
)
