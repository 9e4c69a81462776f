"""Where vLLM keeps what NVFP4 needs, release by release.

One table of homes, newest first; a name is imported from the first home that has it.
``__globals__`` of vLLM's functions is never looked into: a name that merely happens to
be imported by another module today says nothing about tomorrow.  Signatures are asked
with ``inspect.signature`` by the callers.  Nothing is imported before it is asked for.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

_LAYERS = "vllm.model_executor.layers"
_QUANT = f"{_LAYERS}.quantization"
_CT = f"{_QUANT}.compressed_tensors"
_ORACLE = f"{_LAYERS}.fused_moe.oracle.nvfp4"
_FP4 = f"{_QUANT}.utils.marlin_utils_fp4"
_MARLIN = f"{_QUANT}.utils.marlin_utils"
_KERNELS = "vllm.model_executor.kernels.linear.nvfp4"


@dataclass(frozen=True)
class Home:
    """A module that holds a name, and the releases in which it was seen there."""

    module: str
    seen: str


HOMES: dict[str, tuple[Home, ...]] = {
    # Moved with the experts package in vLLM 0.21: verl imports the old home.
    "MarlinExperts": (
        Home(f"{_LAYERS}.fused_moe.experts.marlin_moe", "0.21 - 0.33"),
        Home(f"{_LAYERS}.fused_moe.fused_marlin_moe", "0.11.2 - 0.20"),
    ),
    "BatchedMarlinExperts": (
        Home(f"{_LAYERS}.fused_moe.experts.marlin_moe", "0.21 - 0.33"),
        Home(f"{_LAYERS}.fused_moe.fused_marlin_moe", "0.11.2 - 0.20"),
    ),
    "NvFp4MoeBackend": (Home(_ORACLE, "0.14 - 0.33"),),
    "make_nvfp4_moe_kernel": (Home(_ORACLE, "0.14 - 0.33"),),
    "convert_to_nvfp4_moe_kernel_format": (Home(_ORACLE, "0.14 - 0.33"),),
    "prepare_nvfp4_moe_layer_for_marlin": (Home(_FP4, "0.14 - 0.33"),),
    "prepare_moe_fp4_layer_for_marlin": (Home(_FP4, "0.12 - 0.33"),),
    "prepare_fp4_layer_for_marlin": (Home(_FP4, "0.12 - 0.33"),),
    "nvfp4_marlin_process_scales": (Home(_FP4, "0.12 - 0.33"),),
    "nvfp4_marlin_process_global_scale": (Home(_FP4, "0.12 - 0.33"),),
    "is_fp4_marlin_supported": (Home(_FP4, "0.12 - 0.33"),),
    "kNvfp4Static": (Home(f"{_QUANT}.utils.quant_utils", "0.14 - 0.33"),),
    "apply_fp4_marlin_linear": (Home(_FP4, "0.12 - 0.33"),),
    "swizzle_blockscale": (
        Home(f"{_QUANT}.utils.nvfp4_utils", "0.16 - 0.33"),
        Home(f"{_QUANT}.utils.quant_utils", "0.10.2 - 0.15"),
    ),
    "gptq_marlin_repack": (Home("vllm._custom_ops", "0.12 - 0.33"),),
    "marlin_make_workspace_new": (Home(_MARLIN, "0.12 - 0.33"),),
    "marlin_permute_scales": (Home(_MARLIN, "0.12 - 0.33"),),
    "marlin_permute_bias": (Home(_MARLIN, "0.12 - 0.33"),),
    "replace_parameter": (
        Home("vllm.model_executor.utils", "0.13 - 0.33"),
        Home(f"{_QUANT}.utils.layer_utils", "0.12"),
    ),
    # Linear methods of the ModelOpt format.
    "ModelOptLinearMethod": (Home(f"{_QUANT}.modelopt", "0.30 - 0.33"),),
    "ModelOptNvFp4LinearMethod": (Home(f"{_QUANT}.modelopt", "0.12 - 0.29"),),
    "ModelOptNvFp4W4A16LinearMethod": (Home(f"{_QUANT}.modelopt", "0.21 - 0.29"),),
    "ModelOptNvFp4FusedMoE": (Home(f"{_QUANT}.modelopt", "0.12 - 0.33"),),
    # The linear kernel as an object (0.20), as an enum (0.16 - 0.19), as a string before.
    "MarlinNvFp4LinearKernel": (Home(f"{_KERNELS}.marlin", "0.20 - 0.33"),),
    "NvFp4LinearLayerConfig": (Home(f"{_KERNELS}.base", "0.20 - 0.33"),),
    "NvFp4LinearBackend": (Home(f"{_QUANT}.utils.nvfp4_utils", "0.16 - 0.19"),),
    # Compressed tensors.
    "CompressedTensorsW4A16Fp4": (Home(f"{_CT}.schemes.compressed_tensors_w4a16_nvfp4", "0.12 - 0.22"),),
    "CompressedTensorsW4A4Fp4": (Home(f"{_CT}.schemes.compressed_tensors_w4a4_nvfp4", "0.12 - 0.33"),),
    "CompressedTensorsW4A4Nvfp4MoEMethod": (
        Home(f"{_CT}.compressed_tensors_moe.compressed_tensors_moe_w4a4_nvfp4", "0.20 - 0.33"),
        Home(f"{_CT}.compressed_tensors_moe", "0.12 - 0.19"),
    ),
    "BaseKVCacheMethod": (Home(f"{_QUANT}.kv_cache", "0.12 - 0.33"),),
}


class NotInThisVllmError(ImportError):
    """A vLLM name that none of its known homes has."""


def vllm_version() -> str:
    """The version text of the vLLM in use, ``"?"`` where it states none."""
    return str(getattr(importlib.import_module("vllm"), "__version__", "?"))


def find(name: str) -> Any | None:
    """The object called ``name``, or None when no known home has it.

    An import error inside vLLM (a missing dependency of its own) is not swallowed: only
    a home that does not exist counts as absent.
    """
    for home in HOMES[name]:
        try:
            module = importlib.import_module(home.module)
        except ModuleNotFoundError as error:
            if error.name is None or not (home.module + ".").startswith(error.name + "."):
                raise
            continue
        found = vars(module).get(name)
        if found is not None:
            return found
    return None


def need(name: str) -> Any:
    """As :func:`find`, raising :class:`NotInThisVllmError` with every home that was tried."""
    found = find(name)
    if found is None:
        tried = ", ".join(f"{home.module} (vLLM {home.seen})" for home in HOMES[name])
        raise NotInThisVllmError(
            f"verl-compat: vLLM {vllm_version()} has no {name}; looked in {tried}. "
            "Use a vLLM release between 0.12 and 0.33, or report this release to verl-compat."
        )
    return found


def first(*names: str) -> list[Any]:
    """All of ``names`` that this vLLM has; at least one, else :class:`NotInThisVllmError`."""
    found = [value for name in names if (value := find(name)) is not None]
    if not found:
        raise NotInThisVllmError(f"verl-compat: vLLM {vllm_version()} has none of {', '.join(names)}")
    return found


# The method of an MoE layer that gives them, newest name first; renamed in vLLM 0.22.
ROUTING_TABLES = ("_expert_routing_tables", "_maybe_init_expert_routing_tables")


def routing_tables(layer: Any) -> Any:
    """Expert routing tables of an MoE layer of any release; None for a layer that has none."""
    for name in ROUTING_TABLES:
        method = getattr(layer, name, None)
        if method is not None:
            return method()
    return None
