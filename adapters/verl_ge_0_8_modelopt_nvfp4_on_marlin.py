"""verl's ModelOpt NVFP4 rollout (0.8 and newer) on every vLLM from 0.12."""

from verl_compat.records import Adapter, Has, Replace, Untouched

_V = "verl_compat.shims.marlin_verl"
_M = "verl_compat.shims.marlin"

ADAPTER = Adapter(
    id="verl_ge_0_8_modelopt_nvfp4_on_marlin",
    kind="return-shape",
    summary="ModelOpt NVFP4 weights load and reload on vLLM 0.12 and newer: dense, MoE, KV scales, on Marlin",
    target="verl.utils.modelopt.vllm_modelopt_patch",
    applies={"verl": ">=0.8.0,<0.10", "vllm": ">=0.12,<0.34"},
    tested=tuple(
        {"verl": verl, "vllm": vllm}
        for verl in ("0.8.0", "0.9.1")
        for vllm in (
            "0.12.0", "0.15.1", "0.17.1", "0.18.1", "0.19.1", "0.20.2", "0.22.1", "0.24.0", "0.29.0", "0.30.0",
            "0.33.0",
        )
    ),
    needed=(
        Has("apply_modelopt_nvfp4_patches", "_patched"),
        Has("prepare_modelopt_for_weight_reload", "modelopt_process_weights_after_loading"),
    ),
    patches=(
        Untouched(
            "_patched",
            "verl's own patches of vLLM's NVFP4 methods already ran in this process, and its layers are in their hands",
        ),
        Replace("_unwrap_marlin_scale", f"{_M}:unwrap_marlin_scale", params=("value",)),
        Replace("_split_marlin_scale", f"{_M}:split_marlin_scale", params=("value",)),
        Replace("_marlin_process_scales_experts", f"{_V}:process_expert_scales", params=("scale_hf", "param_dtype")),
        Replace("_modelopt_dense_process_weights", f"{_V}:process_modelopt_dense", params=("self", "layer")),
        Replace("_modelopt_moe_process_weights", f"{_V}:process_modelopt_moe", params=("self", "layer")),
        Replace("_modelopt_kv_process_weights", f"{_V}:process_kv", params=("self", "layer")),
        Replace(
            "prepare_modelopt_for_weight_reload",
            f"{_V}:prepare_modelopt",
            make=True,
            params=("model", "device"),
        ),
        Replace("modelopt_process_weights_after_loading", f"{_V}:process_model", params=("model",)),
        Replace("apply_modelopt_nvfp4_patches", f"{_V}:apply_modelopt", later=True),
    ),
    consumers=("verl.utils.modelopt",),
    why=(
        "verl repeats vLLM 0.20's conversion by hand: TypeError before 0.19, ModuleNotFoundError for MoE from 0.21, "
        "ImportError from 0.30; the bias of a dense layer is never permuted (wrong output for Qwen2.5's QKV), the "
        "Marlin kernel is not selected on native-FP4 GPUs from 0.20, and vLLM's KV-scale method is replaced by an "
        "old copy."
    ),
    links=(
        "https://github.com/verl-project/verl/pull/6335",
        "https://github.com/vllm-project/vllm/releases/tag/v0.19.0",
        "https://github.com/vllm-project/vllm/releases/tag/v0.30.0",
    ),
    keep="no verl release runs vLLM's own conversion again",
)  # fmt: skip
