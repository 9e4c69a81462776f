"""Global names, in numerical order, of single experts and quantised experts for Bridge before 0.5."""

from verl_compat.records import Adapter, Wrap

ADAPTER = Adapter(
    id="bridge_lt_0_5_expert_names",
    kind="backport",
    summary="Numbers and order of SequentialMLP and quantised experts under expert parallelism, for Bridge before 0.5",
    target="megatron.bridge.models.conversion.model_bridge",
    applies={"megatron-bridge": ">=0.3.0,<0.5"},
    tested=(
        {"megatron-bridge": "0.3.1", "megatron-core": "0.16.1"},
        {"megatron-bridge": "0.4.2", "megatron-core": "0.17.1"},
    ),
    needed=(),
    patches=(
        Wrap(
            "_megatron_local_name_to_global",
            "verl_compat.shims.qat_names:name_to_global",
            params=("models", "config", "param_name"),
        ),
        Wrap(
            "extract_sort_key",
            "verl_compat.shims.qat_names:sort_key",
            params=("param_name",),
            home="megatron.bridge.models.conversion.utils",
        ),
    ),
    consumers=(
        "megatron.bridge.models.conversion.utils",
        "megatron.bridge.models.conversion.peft_bridge",
    ),
    why=(
        "With expert parallelism each rank loads experts 0..k-1 of a SequentialMLP, in silence: 36 of 93 "
        "tensors of a small model were wrong. Ranks pair their experts by position in the plan, so the order "
        "(10 before 6 in older releases) must be right with the numbers: one adapter for both. A quantizer "
        "buffer (ModelOpt QAT) stops planning with ValueError. Right from 0.5.0."
    ),
    links=(
        "https://github.com/NVIDIA-NeMo/Megatron-Bridge/pull/3813",
        "https://github.com/verl-project/verl/pull/6335",
    ),
    retire_when={"megatron-bridge": ">=0.5"},
)
