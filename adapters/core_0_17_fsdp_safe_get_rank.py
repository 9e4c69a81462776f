"""The missing `import os` of Megatron-FSDP's safe_get_rank, for megatron-core 0.17 and 0.18."""

from verl_compat.records import Adapter, Add, Has, Lacks

ADAPTER = Adapter(
    id="core_0_17_fsdp_safe_get_rank",
    kind="guard",
    summary="The missing `import os` of Megatron-FSDP's safe_get_rank, for megatron-core 0.17 and 0.18",
    target="megatron.core.distributed.fsdp.src.megatron_fsdp.utils",
    applies={"megatron-core": ">=0.17,<0.19"},
    tested=(
        {"megatron-core": "0.17.1"},
        {"megatron-core": "0.18.2"},
    ),
    needed=(
        Has("safe_get_rank"),
        Lacks("os"),
    ),
    patches=(Add("os", "verl_compat.shims.megatron_fsdp:os"),),
    why=(
        "safe_get_rank() raises NameError: name 'os' is not defined when it is called before "
        "torch.distributed is up (logging while a configuration is built)."
    ),
    links=(
        "https://github.com/NVIDIA/Megatron-LM/issues/4958",
        "https://github.com/NVIDIA/Megatron-LM/pull/4962",
    ),
    retire_when={"megatron-core": ">=0.19"},
    reports=(
        "Megatron-LM#4958",
        "Megatron-LM#4962",
        "Megatron-LM#5016",
    ),
)
