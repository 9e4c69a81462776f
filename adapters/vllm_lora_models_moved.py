"""vllm.lora.models, which vLLM 0.13 renamed to vllm.lora.lora_model."""

from verl_compat.records import Adapter, Provide

ADAPTER = Adapter(
    id="vllm_lora_models_moved",
    kind="rename",
    summary="vllm.lora.models, which vLLM 0.13 renamed to vllm.lora.lora_model",
    target="vllm.lora.models",
    applies={"vllm": ">=0.13"},
    tested=(
        {"vllm": "0.15.1"},
        {"vllm": "0.33.0"},
    ),
    needed=(),
    patches=(Provide({"LoRAModel": "vllm.lora.lora_model:LoRAModel"}),),
    why=(
        "verl 0.6 and trainers of its age import it unguarded: ModuleNotFoundError: No module named 'vllm.lora.models'."
    ),
    links=(
        "https://github.com/microsoft/agent-lightning/issues/437",
        "https://github.com/verl-project/verl/pull/4631",
    ),
    keep="vLLM will not have it again",
    reports=(
        "agent-lightning#437",
        "verl#4631",
    ),
)
