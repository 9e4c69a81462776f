"""Which kernel an NVFP4 method uses, and making it Marlin where verl asks for Marlin.

verl's ModelOpt QAT is weight-only: no input scale is ever sent, so a native FP4 kernel
must not be chosen.  verl sets ``backend = "marlin"`` on the method, which vLLM stopped
reading in 0.16 (an enum) and 0.20 (a kernel object, chosen by vLLM): native-FP4 GPUs
then read Marlin-packed weights with another kernel.
Upstream: vLLM 0.12 - 0.33, ``quantization/modelopt.py`` and ``fused_moe/oracle/nvfp4.py``.
"""

from __future__ import annotations

import inspect
from typing import Any

from verl_compat.shims.marlin_resolve import find, need, vllm_version

_ALWAYS_MARLIN = ("CompressedTensorsW4A16Fp4", "ModelOptNvFp4W4A16LinearMethod")


def require_marlin() -> None:
    """Stop with one clear error where vLLM's FP4 Marlin kernel cannot run.

    Raises:
        RuntimeError: before any weight is loaded or packed.
    """
    if not need("is_fp4_marlin_supported")():
        raise RuntimeError(
            f"verl-compat: NVFP4 QAT needs vLLM's FP4 Marlin kernel, and vLLM {vllm_version()} says that it does "
            "not support this device (an NVIDIA GPU of compute capability 7.5 or newer, 8.0 before vLLM 0.13). "
            "Use such a GPU, or switch QAT off for the rollout."
        )


def is_marlin(method: Any) -> bool:
    """Whether a linear method, scheme or MoE method of any release runs on Marlin."""
    if type(method).__name__ in _ALWAYS_MARLIN or getattr(method, "use_marlin", False):
        return True
    if type(getattr(method, "kernel", None)).__name__ == "MarlinNvFp4LinearKernel":
        return True
    return any(_named_marlin(getattr(method, name, None)) for name in ("backend", "nvfp4_backend"))


def _named_marlin(backend: Any) -> bool:
    return str(getattr(backend, "name", backend)).lower() == "marlin"


def force_linear(method: Any) -> None:
    """Make a ModelOpt linear method use Marlin, as its vLLM release understands it.

    Raises:
        RuntimeError: Marlin cannot run here, or the release offers no way to select it.
    """
    if is_marlin(method):
        return
    kernel, config = find("MarlinNvFp4LinearKernel"), find("NvFp4LinearLayerConfig")
    if kernel is not None and config is not None:  # 0.20 and newer
        method.kernel = kernel(config())
    elif (enum := find("NvFp4LinearBackend")) is not None:  # 0.16 - 0.19
        method.backend = enum.MARLIN
    else:
        method.backend = "marlin"
    if not is_marlin(method):
        raise RuntimeError(
            f"verl-compat: Marlin could not be selected for {type(method).__name__} on vLLM {vllm_version()}; "
            "weights packed for Marlin would be read by another kernel."
        )


def force_moe(method: Any) -> None:
    """Make a ModelOpt MoE method use Marlin.

    Raises:
        RuntimeError: vLLM's Marlin experts do not support this deployment.
    """
    if is_marlin(method):
        return
    backend = find("NvFp4MoeBackend")
    if backend is None:  # 0.12, 0.13: flags
        method.use_marlin, method.allow_flashinfer, method.cutlass_nvfp4_supported = True, False, False
        method.flashinfer_moe_backend = None
        return
    experts = need("MarlinExperts")
    _check_deployment(experts, method.moe)
    method.nvfp4_backend, method.experts_cls, method.use_global_sf = backend.MARLIN, experts, False


def _check_deployment(experts: Any, moe_config: Any) -> None:
    supported = getattr(experts, "is_supported_config", None)
    if supported is None:
        return
    parallel = getattr(moe_config, "moe_parallel_config", None)
    if getattr(parallel, "use_batched_activation_format", False):
        ok, reason = False, "the all2all backend wants batched activations"
    else:
        arguments = {
            "cls": experts,
            "moe_config": moe_config,
            "weight_key": find("kNvfp4Static"),
            "activation_key": None,
            "activation_format": experts.activation_format(),
        }
        names = inspect.signature(supported).parameters
        ok, reason = supported(**{name: arguments[name] for name in names})
    if not ok:
        raise RuntimeError(
            f"verl-compat: NVFP4 QAT needs vLLM's Marlin experts, which vLLM {vllm_version()} does not support for "
            f"this deployment: {reason}. Choose another all2all backend or parallel layout for the rollout."
        )
