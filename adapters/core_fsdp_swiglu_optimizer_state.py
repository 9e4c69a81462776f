"""Explains the failure of Megatron-FSDP's optimizer save for SwiGLU layers."""

from verl_compat.records import Adapter, Has, Wrap

ADAPTER = Adapter(
    id="core_fsdp_swiglu_optimizer_state",
    kind="diagnose",
    summary="Explains the failure of Megatron-FSDP's optimizer save for SwiGLU layers",
    target="megatron.core.transformer.fsdp_dtensor_checkpoint",
    applies={"megatron-core": ">=0.14"},
    tested=(
        {"megatron-core": "0.14.0"},
        {"megatron-core": "0.16.1"},
        {"megatron-core": "0.19.2"},
    ),
    needed=(Has("handle_swiglu_in_state_dict"),),
    patches=(
        Wrap(
            "handle_swiglu_in_state_dict",
            "verl_compat.shims.diagnose_checkpoint:explain_swiglu_optimizer_state",
            params=("model", "model_state_dict", "optimizer_state_dict"),
        ),
    ),
    why=(
        "core splits the optimizer state as DTensors; plain tensors end in AssertionError or "
        "AttributeError: 'Tensor' object has no attribute 'to_local'."
    ),
    links=(
        "https://github.com/NVIDIA/Megatron-LM/issues/5265",
        "https://github.com/NVIDIA/Megatron-LM/pull/5346",
        "https://github.com/NVIDIA-NeMo/Megatron-Bridge/issues/4236",
    ),
    keep="core 0.19.2 still reads to_local",
    reports=(
        "Megatron-LM#5265",
        "Megatron-LM#5346",
        "Megatron-Bridge#4236",
    ),
)
