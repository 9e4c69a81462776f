"""Expert LoRA at expert parallelism on a Bridge that drops part of it."""

from verl_compat.records import Adapter, Wrap

ADAPTER = Adapter(
    id="bridge_lt_0_5_moe_lora_merge",
    kind="diagnose",
    summary="Expert LoRA at expert parallelism on a Bridge that was reported to drop part of it",
    target="verl.workers.config.megatron_peft",
    applies={"verl": ">=0.7.0", "megatron-bridge": ">=0.3.0,<0.5"},
    tested=(
        {"verl": "0.7.1", "megatron-bridge": "0.3.1"},
        {"verl": "0.8.0", "megatron-bridge": "0.4.2"},
        {"verl": "0.9.1", "megatron-bridge": "0.4.2"},
    ),
    needed=(),
    patches=(
        Wrap(
            "get_peft_cls",
            "verl_compat.shims.diagnose_lora:warn_early_moe_merge",
            params=("model_config", "bridge", "provider"),
        ),
    ),
    why=(
        "Reported of early Bridge: grouped expert weights are skipped when adapters are merged for export, or "
        "the adapters of one expert-parallel rank only are exported. The code of 0.3.1 and 0.4.2 gathers them; "
        "not settled by a run."
    ),
    links=(
        "https://github.com/NovaSky-AI/SkyRL/pull/893",
        "https://github.com/NVIDIA-NeMo/Megatron-Bridge/issues/1936",
        "https://github.com/NVIDIA-NeMo/Megatron-Bridge/issues/1817",
    ),
    retire_when={"megatron-bridge": ">=0.5"},
    reports=(
        "SkyRL#893",
        "Megatron-Bridge#1936",
        "Megatron-Bridge#1817",
    ),
)
