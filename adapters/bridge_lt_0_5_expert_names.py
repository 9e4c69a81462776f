"""Global names of single experts and quantizer buffers for Bridge before 0.5."""

from verl_compat.records import Adapter, Wrap

ADAPTER = Adapter(
    id="bridge_lt_0_5_expert_names",
    kind="backport",
    summary="Expert numbers of SequentialMLP and of quantised experts under expert parallelism, for Bridge before 0.5",
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
    ),
    why=(
        "With expert parallelism each rank loads experts 0..k-1 of a SequentialMLP, in silence, and exports "
        "them as its own: 24 of 87 tensors of a small model were wrong. A quantizer buffer (ModelOpt QAT) "
        "stops planning with ValueError. Right from 0.5.0."
    ),
    links=(
        "https://github.com/NVIDIA-NeMo/Megatron-Bridge/pull/3813",
        "https://github.com/verl-project/verl/pull/6335",
    ),
    retire_when={"megatron-bridge": ">=0.5"},
)
