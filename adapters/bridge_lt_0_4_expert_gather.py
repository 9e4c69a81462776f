"""Gathering single experts over expert-parallel ranks for Bridge 0.3."""

from verl_compat.records import Adapter, Wrap

ADAPTER = Adapter(
    id="bridge_lt_0_4_expert_gather",
    kind="backport",
    summary="Export of SequentialMLP experts under expert parallelism, for Bridge 0.3",
    target="megatron.bridge.models.conversion.param_mapping",
    applies={"megatron-bridge": ">=0.3.0,<0.4"},
    tested=({"megatron-bridge": "0.3.1", "megatron-core": "0.16.1"},),
    needed=(),
    patches=(
        Wrap(
            "MegatronParamMapping.gather_from_ep_ranks",
            "verl_compat.shims.qat_layers:gather_from_ep_ranks",
            params=("self", "megatron_weights", "megatron_module", "hf_param_name"),
        ),
    ),
    why=(
        "Bridge 0.3 reads the expert number from '.weight3' only: exporting a SequentialMLP with expert "
        "parallelism raises ValueError (int of an empty text). Right from 0.4.0."
    ),
    links=(
        "https://github.com/NVIDIA-NeMo/Megatron-Bridge/pull/3813",
        "https://github.com/verl-project/verl/pull/6335",
    ),
    retire_when={"megatron-bridge": ">=0.4"},
)
