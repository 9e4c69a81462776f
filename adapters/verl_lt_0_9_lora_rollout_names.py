"""Not merged LoRA with vLLM on verl 0.7 and 0.8, which name base weights by model type."""

from verl_compat.records import Adapter, Wrap

ADAPTER = Adapter(
    id="verl_lt_0_9_lora_rollout_names",
    kind="diagnose",
    summary="Not merged LoRA with vLLM on verl 0.7 and 0.8, which name base weights by model type",
    target="verl.workers.config.megatron_peft",
    applies={"verl": ">=0.7.1,<0.9"},
    tested=(
        {"verl": "0.7.1"},
        {"verl": "0.8.0"},
    ),
    needed=(),
    patches=(
        Wrap(
            "get_peft_cls",
            "verl_compat.shims.diagnose_lora:warn_names_by_model_type",
            params=("model_config", "bridge", "provider"),
        ),
    ),
    why=(
        "KeyError: 'embed_tokens.weight', or ValueError: no module named ...base_layer.weight, at the "
        "first weight sync of MoE and vision-language models."
    ),
    links=(
        "https://github.com/verl-project/verl/issues/6256",
        "https://github.com/verl-project/verl/pull/7327",
        "https://github.com/verl-project/verl/pull/7376",
        "https://github.com/verl-project/verl/pull/7453",
        "https://github.com/verl-project/verl/pull/7173",
    ),
    retire_when={"verl": ">=0.9"},
    reports=(
        "verl#6256",
        "verl#7327",
        "verl#7376",
        "verl#7453",
        "verl#7173",
        "verl#5599",
    ),
)
