"""Converted layers go back into verl's own hands: what its reload needs to know of them.

verl's reload finds its bookkeeping on each layer (shapes and loaders of the checkpoint's
parameters, the tensors that kernels hold) and its own conversion on vLLM's classes.  When the
adapter is taken back the classes are vLLM's again, so the conversion is put on the methods of
the layers that this process has.
Upstream: verl 0.7.1 - 0.9.1 ``utils/modelopt/vllm_modelopt_patch.py``, ``utils/qat/vllm_patch.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MethodType
from typing import TYPE_CHECKING, Any

from verl_compat.shims import marlin_reload
from verl_compat.shims.marlin_delivery import LOADERS
from verl_compat.shims.marlin_install import PROCESS, method_of
from verl_compat.shims.notices import say_once

if TYPE_CHECKING:
    import torch

ADAPTERS = {True: "verl_ge_0_7_1_qat_nvfp4_on_marlin", False: "verl_ge_0_8_modelopt_nvfp4_on_marlin"}


@dataclass
class HandOver:
    """One change: layers are in our hands; taken back, they are in verl's.

    Attributes:
        verl: names of verl's module before it was patched.
        compressed_tensors: which of the two formats the module is for.
    """

    verl: Mapping[str, Any]
    compressed_tensors: bool

    def do(self) -> None:
        """Take over the layers that were handed to verl before."""
        for layer, _ in self._mine():
            vars(method_of(layer)).pop(PROCESS, None)

    def undo(self) -> str | None:
        """Give verl's bookkeeping to each layer, and verl's conversion to its method."""
        for layer, state in self._mine():
            describe(layer, state)
            method = method_of(layer)
            own = self.verl.get(self._conversion(type(method).__name__))
            if own is not None:
                vars(method)[PROCESS] = MethodType(own, method)
            if "bias" in state.slots:
                say_once(
                    ADAPTERS[self.compressed_tensors],
                    "verl's own NVFP4 reload, which is in use again, does not permute the bias of a layer for Marlin: "
                    "layers with a bias compute wrong values from the next weight sync on. Restart the rollout.",
                )
        return None

    def _mine(self) -> list[tuple[Any, marlin_reload.ReloadState]]:
        found = [(layer, marlin_reload.ReloadState.of(layer)) for layer in marlin_reload.layers()]
        return [
            (layer, state)
            for layer, state in found
            if state is not None
            and state.compressed_tensors is self.compressed_tensors
            and hasattr(method_of(layer), "__dict__")
        ]

    def _conversion(self, method: str) -> str:
        experts = "MoE" in method
        if not self.compressed_tensors:
            return "_modelopt_moe_process_weights" if experts else "_modelopt_dense_process_weights"
        kind = "nvfp4_moe" if experts else "w4a4" if "W4A4" in method else "w4a16"
        return f"patched_{kind}_process_weights_after_loading"


def describe(layer: torch.nn.Module, state: marlin_reload.ReloadState) -> None:
    """Write on a layer what verl's first conversion would have written."""
    checkpoint = {name: slot for name, slot in state.slots.items() if name != "bias"}
    refs = {name: live.data for name, live in state.live.items()}
    total = refs.get("weight_global_scale", refs.get("weight_scale_2"))
    if total is not None:  # verl knows the dense global scale by the checkpoint's name
        refs["weight_scale_2"] = total
    known: Any = layer
    known._hf_param_meta = {name: _meta(slot) for name, slot in checkpoint.items()}
    loaders = {
        name: slot.attrs.get("weight_loader") or slot.attrs.get("_weight_loader") for name, slot in checkpoint.items()
    }
    known._weight_loaders = {name: loader for name, loader in loaders.items() if loader is not None}
    known._marlin_tensor_refs = refs
    known._process_weights_call_count = 1


def _meta(slot: marlin_reload.Slot) -> dict[str, Any]:
    given = {"shape": slot.shape, "dtype": slot.dtype, "device": str(slot.device), "param_class": slot.cls}
    named = {"input_dim": "_input_dim", "output_dim": "_output_dim", "quant_method": "quant_method"}
    return given | {key: slot.attrs[name] for key, name in named.items() if name in slot.attrs}


def _loader(slot: marlin_reload.Slot) -> Any:
    return next((slot.attrs[name] for name in LOADERS if callable(slot.attrs.get(name))), None)
