"""The module class that holds vLLM's fused expert weights, for verl releases that know it as ``FusedMoE``.

vLLM < 0.24: FusedMoE, a class.  0.24 to 0.26: FusedMoE is a factory function, the weights are on a
``RoutedExperts`` that a ``MoERunner`` owns.  From 0.27 the name is gone (vLLM PR #41184).
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

from verl_compat.shims.notices import before, diagnosis, installed, say_once

_PACKAGE = "vllm.model_executor.layers.fused_moe"


def is_no_expert_class(module: ModuleType) -> bool:
    """Whether the ``FusedMoE`` of a verl module no longer is the class of MoE layers."""
    bound = vars(module).get("FusedMoE")
    return bound is not None and not (isinstance(bound, type) and bound.__name__ == "FusedMoE")


def make_expert_class(module: ModuleType) -> type:
    """A class for ``isinstance(layer, FusedMoE)``: true for RoutedExperts and for the runner that owns one."""
    package = importlib.import_module(_PACKAGE)
    classes = tuple(
        found for name in ("RoutedExperts", "MoERunner") if isinstance(found := getattr(package, name, None), type)
    )
    if not classes:
        raise AttributeError(f"{_PACKAGE} has neither RoutedExperts nor MoERunner")

    class AnyExperts(type):
        """Instances are the MoE layers of this vLLM."""

        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, classes)

    return AnyExperts("FusedMoE", (), {"__doc__": "vLLM's MoE layers, by whatever name."})


def weight_holder(original: Callable[..., Any], model: Any, name: str) -> Any:
    """Around verl's ``get_module_from_param_name``: of a runner, the RoutedExperts that holds w13_weight."""
    found = original(model, name)
    return getattr(found, "routed_experts", found)


def fp8_after_upgrade(*args: Any, **kwargs: Any) -> str | None:
    """verl 0.7's FP8 patches on a vLLM that they were not written for.

    Those of 0.7.0 send scales under a name that vLLM 0.14 no longer reads; those of 0.7.1 name
    functions that vLLM 0.20 removed.
    """
    return diagnosis(
        "rollout.quantization=fp8",
        installed("verl", "vllm"),
        "This verl replaces vLLM's FP8 weight processing by copies for older releases (verl 0.7.0: vLLM 0.11 to 0.13, "
        "verl 0.7.1: up to 0.19); here the first weight sync raises ImportError, or loads scales under a name that "
        "vLLM does not read.",
        "Set rollout.quantization=null, use verl >= 0.8 (vLLM 0.20) or >= 0.9 (vLLM 0.24), or vLLM 0.12 with "
        "verl 0.7.0 and vLLM 0.17 with verl 0.7.1.",
    )


def takes_no_prefer_copy(module: ModuleType) -> bool:
    """Whether verl passes vLLM's ``replace_parameter`` an argument that it dropped (vLLM 0.33)."""
    if "_replace_parameter_in_place" not in vars(module):
        return False
    native = importlib.import_module("vllm.model_executor.utils").replace_parameter
    return "prefer_copy" not in inspect.signature(native).parameters


def make_replace_in_place(module: ModuleType) -> Callable[..., Any]:
    """verl 0.9's ``_replace_parameter_in_place`` where vLLM's ``replace_parameter`` copies in place by itself."""
    fold, live_attribute = vars(module)["_replace_parameter_in_place"], vars(module)["_MXFP4_LIVE_ATTR"]

    def _replace_parameter_in_place(layer: Any, param_name: str, new_data: Any, prefer_copy: bool = False) -> Any:
        live = getattr(layer, live_attribute, None) or {}
        if new_data is not None and live.get(param_name) is not None:
            return fold(layer, param_name, new_data, prefer_copy)
        live.pop(param_name, None)  # verl counts what is left over as a mistake
        return importlib.import_module("vllm.model_executor.utils").replace_parameter(layer, param_name, new_data)

    return _replace_parameter_in_place


def trtllm_backend(original: Callable[..., None], self: Any, *args: Any, **kwargs: Any) -> None:
    """Around ``UnquantizedFusedMoEMethod.__init__``: say so if the backend rewrites the expert weights to 4-D."""
    original(self, *args, **kwargs)
    backend = getattr(getattr(self, "unquantized_backend", None), "name", "")
    if backend != "FLASHINFER_TRTLLM":
        return
    text = diagnosis(
        "vLLM chose the FlashInfer TRT-LLM backend for unquantized experts (Blackwell)",
        installed("vllm", "verl"),
        "It stores w13 and w2 as 4-D tensors, and reloading them from the trainer raises ValueError 'shard_dim=0 is "
        "not a valid data dimension for a 3D tensor', then hangs in NCCL.",
        "Choose another MoE backend: rollout.engine_kwargs.vllm.moe_backend=triton.",
    )
    say_once("vllm_ge_0_24_trtllm_moe_reload", text)


warn_fp8_of_verl_0_7_0 = before("verl_0_7_0_fp8_rollout", fp8_after_upgrade)
warn_fp8_after_upgrade = before("verl_lt_0_8_fp8_rollout", fp8_after_upgrade)
