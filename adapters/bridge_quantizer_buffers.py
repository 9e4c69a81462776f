"""Quantizer buffers left out of conversion plans."""

from verl_compat.records import Adapter, Has, Wrap

ADAPTER = Adapter(
    id="bridge_quantizer_buffers",
    kind="guard",
    summary="ModelOpt quantizer buffers are left out of conversion plans unless ENABLE_BRIDGE_QUANT_MAPPING=1",
    target="megatron.bridge.models.conversion.model_bridge",
    applies={"megatron-bridge": ">=0.3.0"},
    tested=(
        {"megatron-bridge": "0.3.1", "megatron-core": "0.16.1"},
        {"megatron-bridge": "0.4.2", "megatron-core": "0.17.1"},
        {"megatron-bridge": "0.5.1", "megatron-core": "0.18.2"},
        {"megatron-bridge": "0.6.2", "megatron-core": "0.19.2"},
    ),
    needed=(Has("MegatronModelBridge.build_conversion_tasks", "MegatronModelBridge._with_progress_tracking"),),
    patches=(
        Wrap(
            "MegatronModelBridge.build_conversion_tasks",
            "verl_compat.shims.qat_names:leave_quantizers_out",
            params=("self", "hf_pretrained", "megatron_model"),
        ),
        Wrap(
            "MegatronModelBridge._with_progress_tracking",
            "verl_compat.shims.qat_names:name_unmapped",
            params=("self", "tasks"),
        ),
    ),
    why=(
        "verl >= 0.8 exports weights of a ModelOpt QAT model without that variable: names such as "
        "weight_quantizer._amax have no mapping, the plan holds None for them and the export fails with "
        "AttributeError, in every release, at saves and loads too. Other parameters without a mapping "
        "still stop them, and are named."
    ),
    links=("https://github.com/verl-project/verl/pull/6335",),
    keep="no release skips them itself",
)
