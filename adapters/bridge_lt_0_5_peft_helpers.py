"""create_peft, create_peft_hook and load_peft_adapter_checkpoint for Bridge before 0.5."""

from verl_compat.records import Adapter, Add, Lacks

ADAPTER = Adapter(
    id="bridge_lt_0_5_peft_helpers",
    kind="backport",
    summary="create_peft, create_peft_hook and load_peft_adapter_checkpoint for Bridge before 0.5",
    target="megatron.bridge.peft.utils",
    applies={"megatron-bridge": ">=0.3.0,<0.5"},
    tested=(
        {"megatron-bridge": "0.3.1", "megatron-core": "0.16.1"},
        {"megatron-bridge": "0.4.2", "megatron-core": "0.17.1"},
        {"megatron-bridge": "0.4.2", "megatron-core": "0.17.1", "verl": "0.8.0"},
        {"megatron-bridge": "0.4.2", "megatron-core": "0.17.1", "verl": "0.9.1"},
    ),
    needed=(Lacks("create_peft", "create_peft_hook", "load_peft_adapter_checkpoint"),),
    patches=(
        Add("create_peft", "verl_compat.shims.peft:create_peft"),
        Add("create_peft_hook", "verl_compat.shims.peft:create_peft_hook"),
        Add("load_peft_adapter_checkpoint", "verl_compat.shims.peft:load_peft_adapter_checkpoint"),
    ),
    why=(
        "verl 0.8 imports create_peft_hook and load_peft_adapter_checkpoint for every Bridge model, verl "
        "0.9 as soon as lora.rank is set; both import create_peft for LoRA. Bridge has them from 0.5.0: "
        "ImportError before."
    ),
    links=(
        "https://github.com/NVIDIA-NeMo/Megatron-Bridge/pull/3813",
        "https://github.com/verl-project/verl/pull/6335",
    ),
    retire_when={"megatron-bridge": ">=0.5"},
    reports=("verl#6682",),
)
