"""verl's compressed-tensors NVFP4 QAT rollout (0.7.1 and newer) on every vLLM from 0.12."""

from verl_compat.records import Adapter, Has, Replace, Untouched

_V = "verl_compat.shims.marlin_verl"

ADAPTER = Adapter(
    id="verl_ge_0_7_1_qat_nvfp4_on_marlin",
    kind="return-shape",
    summary="compressed-tensors NVFP4 weights load and reload on vLLM 0.12 and newer: W4A16, W4A4, MoE, all kernels",
    target="verl.utils.qat.vllm_patch",
    applies={"verl": ">=0.7.1,<0.10", "vllm": ">=0.12,<0.34"},
    tested=tuple(
        {"verl": verl, "vllm": vllm}
        for verl in ("0.7.1", "0.8.0", "0.9.1")
        for vllm in (
            "0.12.0", "0.15.1", "0.17.1", "0.18.1", "0.19.1", "0.20.2", "0.22.1", "0.24.0", "0.29.0", "0.30.0",
            "0.33.0",
        )
    ),
    needed=(
        Has("apply_qat_patches", "_applied_patches"),
        Has("prepare_qat_for_load_weights", "manual_process_weights_after_loading"),
    ),
    patches=(
        Untouched(
            "_applied_patches",
            "verl's own patches of vLLM's NVFP4 methods already ran in this process, and its layers are in their hands",
        ),
        Replace("_marlin_process_scales_experts", f"{_V}:process_expert_scales", params=("scale_hf", "param_dtype")),
        Replace(
            "patched_w4a16_process_weights_after_loading",
            f"{_V}:process_compressed_tensors",
            params=("self", "layer"),
        ),
        Replace(
            "patched_w4a4_process_weights_after_loading",
            f"{_V}:process_compressed_tensors",
            params=("self", "layer"),
        ),
        Replace(
            "patched_nvfp4_moe_process_weights_after_loading",
            f"{_V}:process_compressed_tensors",
            params=("self", "layer"),
        ),
        Replace("prepare_qat_for_load_weights", f"{_V}:prepare_qat", make=True, params=("model", "device")),
        Replace("manual_process_weights_after_loading", f"{_V}:process_model", params=("model",)),
        Replace("apply_qat_patches", f"{_V}:apply_qat", later=True),
    ),
    consumers=("verl.utils.qat",),
    why=(
        "verl repeats vLLM 0.15's conversion by hand and patches by path: W4A4 and MoE fail from 0.16, everything "
        "from 0.19 (scales came back as a pair) and 0.20 (the patch targets moved); a failed attempt leaves vLLM half "
        "patched and the retry says 'already applied'. Bias is never permuted."
    ),
    links=(
        "https://github.com/vllm-project/vllm/releases/tag/v0.16.0",
        "https://github.com/vllm-project/vllm/releases/tag/v0.19.0",
        "https://github.com/vllm-project/vllm/releases/tag/v0.23.0",
    ),
    keep="no verl release runs vLLM's own conversion again",
    reports=("vllm#23140",),
)  # fmt: skip
