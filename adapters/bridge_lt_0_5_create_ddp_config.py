"""create_ddp_config, with the Megatron-FSDP presets, for Bridge before 0.5."""

from verl_compat.records import Adapter, Add, Lacks

ADAPTER = Adapter(
    id="bridge_lt_0_5_create_ddp_config",
    kind="backport",
    summary="create_ddp_config, with the Megatron-FSDP presets, for Bridge before 0.5",
    target="megatron.bridge.training.utils.config_utils",
    applies={"megatron-bridge": ">=0.3.0,<0.5"},
    tested=(
        {"megatron-bridge": "0.3.1", "megatron-core": "0.16.1"},
        {"megatron-bridge": "0.4.2", "megatron-core": "0.17.1"},
        {"megatron-bridge": "0.4.2", "megatron-core": "0.17.1", "verl": "0.8.0"},
        {"megatron-bridge": "0.4.2", "megatron-core": "0.17.1", "verl": "0.9.1"},
    ),
    needed=(Lacks("create_ddp_config"),),
    patches=(Add("create_ddp_config", "verl_compat.shims.ddp_config:create_ddp_config"),),
    why=("verl 0.8 imports it, unguarded, for every Bridge model; Bridge has it from 0.5.0: ImportError before."),
    links=(
        "https://github.com/NVIDIA-NeMo/Megatron-Bridge/pull/3813",
        "https://github.com/verl-project/verl/pull/6335",
    ),
    retire_when={"megatron-bridge": ">=0.5"},
    reports=("verl#6682",),
)
