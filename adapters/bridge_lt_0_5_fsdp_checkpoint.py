"""load_fsdp_dtensor_checkpoint and save_fsdp_dtensor_checkpoint for Bridge before 0.5."""

from verl_compat.records import Adapter, Add, Lacks

ADAPTER = Adapter(
    id="bridge_lt_0_5_fsdp_checkpoint",
    kind="backport",
    summary="Megatron-FSDP checkpoints on Bridge before 0.5: save, and load from 0.4 on (0.3 refuses clearly)",
    target="megatron.bridge.training.checkpointing",
    applies={"megatron-bridge": ">=0.3.0,<0.5"},
    tested=(
        {"megatron-bridge": "0.3.1", "megatron-core": "0.16.1"},
        {"megatron-bridge": "0.4.2", "megatron-core": "0.17.1"},
    ),
    needed=(Lacks("load_fsdp_dtensor_checkpoint", "save_fsdp_dtensor_checkpoint"),),
    patches=(
        Add("load_fsdp_dtensor_checkpoint", "verl_compat.shims.fsdp_checkpoint:load_fsdp_dtensor_checkpoint"),
        Add("save_fsdp_dtensor_checkpoint", "verl_compat.shims.fsdp_checkpoint:save_fsdp_dtensor_checkpoint"),
    ),
    why=(
        "verl 0.8 and 0.9 import both when use_megatron_fsdp is set: training stops with ImportError at the "
        "first checkpoint. Bridge has them from 0.5.0."
    ),
    links=(
        "https://github.com/NVIDIA-NeMo/Megatron-Bridge/pull/3866",
        "https://github.com/verl-project/verl/pull/6335",
    ),
    retire_when={"megatron-bridge": ">=0.5"},
    reports=("verl#6682",),
)
