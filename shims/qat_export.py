"""Amax and scale guards for verl's NVFP4 exporters (trainer side).

An all-zero weight has amax 0; ModelOpt then divides 0 by 0 and the block scales are
NaN, which vLLM spreads over the layer.  verl also takes the amax of its own tensor
parallel shard for the whole weight, and dereferences an amax that is None.
Upstream: verl 0.8.0 - 0.9.1 ``utils/modelopt/qat_weight_exporter.py`` and 0.7.1 - 0.9.1
``utils/qat/quantizer.py``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from verl_compat.shims.marlin import warn_once

if TYPE_CHECKING:
    import torch

# 6 (largest E2M1) * 448 (largest E4M3): the global scale is amax / this.
AMAX_DENOMINATOR = 6.0 * 448.0

TINY_GLOBAL_SCALE = 2.0**-100
"""Global scale of an all-zero weight: normal in fp32 and bf16, and never the largest of fused shards."""


def quantize_nvfp4(
    original: Callable[..., Iterator[tuple[str, torch.Tensor]]], self: Any, name: str, weight: torch.Tensor, meta: Any
) -> Iterator[tuple[str, torch.Tensor]]:
    """For ``QATWeightExporter._quantize_nvfp4``: never NaN from a finite weight.

    ``meta.weight_amax`` is replaced where it is None, NaN or infinite (by the weight's
    own amax) or zero (by the amax of :data:`TINY_GLOBAL_SCALE`: the blocks quantise to
    zero and all scales are finite).
    """
    amax = usable_amax(meta.weight_amax, weight, name)
    return original(self, name, weight, replace(meta, weight_amax=amax))


def usable_amax(amax: torch.Tensor | None, weight: torch.Tensor, name: str) -> torch.Tensor:
    """A finite positive amax for a weight; ``amax`` itself wherever it is one."""
    import torch

    if amax is not None and amax.numel():
        if bool((torch.isfinite(amax) & (amax > 0)).all()):
            return amax
        state = "zero" if bool((amax == 0).all()) else "not finite"
    else:
        state = "missing"
    own = weight.detach().abs().amax().to(torch.float32) if weight.numel() else torch.zeros(())
    if not bool(torch.isfinite(own)):
        warn_once(f"{name}: the weight itself holds NaN or infinity; it is exported as it is")
        return own
    if float(own) == 0.0:
        warn_once(f"{name}: all-zero weight (amax {state}); exported as zeros with finite NVFP4 scales")
        return torch.full_like(own, TINY_GLOBAL_SCALE * AMAX_DENOMINATOR)
    warn_once(f"{name}: NVFP4 amax is {state}; the amax of the weight is used")
    return own


def compute_input_scale(original: Callable[[Any], Any], meta: Any) -> Any:
    """For ``_compute_input_scale``: an input amax of zero or None gives no exception and no zero scale.

    ModelOpt asserts a positive scale.  A layer that saw no activation (an expert without
    tokens) gets scale 1.0; None stays None.
    """
    import torch

    quantizer = meta.input_quantizer
    amax = getattr(quantizer, "_amax", None) if quantizer is not None else None
    amax = meta.input_amax if amax is None else amax
    if amax is None:
        return None
    good = torch.isfinite(amax) & (amax > 0)
    if bool(good.all()):
        return original(meta)
    warn_once("NVFP4 input amax is zero or not finite for a layer that saw no activation; its input scale is 1.0")
    return torch.where(good, amax.float() / AMAX_DENOMINATOR, torch.ones_like(amax, dtype=torch.float32))


def collect_metadata(original: Callable[..., None], self: Any, actor_module: Any) -> None:
    """For ``QATWeightExporter._collect_metadata``: amax is the largest over the tensor parallel ranks.

    Two small all-reduces per group (tensor parallel, and expert tensor parallel for
    experts) when the exporter is made.  Ranks whose parameters differ keep their own
    values, with a warning.
    """
    original(self, actor_module)
    groups = _tensor_parallel_groups()
    for experts, group in groups.items():
        metas = {n: m for n, m in sorted(self._metadata.items()) if _is_expert(n) is experts}
        if metas and group is not None:
            reduce_amax(self._metadata, metas, group)


def _is_expert(name: str) -> bool:
    return ".experts." in name and "shared_experts" not in name


def _tensor_parallel_groups() -> dict[bool, Any]:
    """By "is an expert parameter": the group, or None where it has one rank."""
    import torch
    from megatron.core import parallel_state as mpu

    if not torch.distributed.is_initialized():
        return {}
    found: dict[bool, Any] = {False: mpu.get_tensor_model_parallel_group()}
    expert = getattr(mpu, "get_expert_tensor_parallel_group", None)
    found[True] = expert() if expert is not None else found[False]
    return {key: group if _size(group) > 1 else None for key, group in found.items()}


def _size(group: Any) -> int:
    import torch

    return 1 if group is None else int(torch.distributed.get_world_size(group=group))


def reduce_amax(target: dict[str, Any], metas: dict[str, Any], group: Any) -> None:
    """Replace weight and input amax of ``metas`` in ``target`` by the maximum over ``group``.

    Scalar amax only (NVFP4's); the same names on every rank, else nothing is changed.
    The reduced input amax also replaces the quantiser's own, which is this rank's.
    """
    import torch

    device = _device()
    values = [_scalar(amax) for meta in metas.values() for amax in (meta.weight_amax, meta.input_amax)]
    digest = int.from_bytes(hashlib.sha256("\n".join(metas).encode()).digest()[:2], "big")
    check = torch.tensor([len(values), -len(values), digest, -digest], dtype=torch.float32, device=device)
    torch.distributed.all_reduce(check, op=torch.distributed.ReduceOp.MAX, group=group)
    if check[0] != -check[1] or check[2] != -check[3]:
        warn_once("NVFP4 export: parameters differ between tensor parallel ranks; amax is not shared between them")
        return
    reduced = torch.tensor(values, dtype=torch.float32, device=device)
    torch.distributed.all_reduce(reduced, op=torch.distributed.ReduceOp.MAX, group=group)
    for (name, meta), weight, inputs in zip(metas.items(), reduced[::2].tolist(), reduced[1::2].tolist(), strict=True):
        target[name] = _with_amax(meta, weight, inputs)


def _with_amax(meta: Any, weight: float, inputs: float) -> Any:
    new_input = _replaced(meta.input_amax, inputs)
    same = new_input is meta.input_amax
    return replace(
        meta,
        weight_amax=_replaced(meta.weight_amax, weight),
        input_amax=new_input,
        input_quantizer=meta.input_quantizer if same else None,
    )


def _replaced(amax: torch.Tensor | None, value: float) -> torch.Tensor | None:
    import torch

    if value < 0.0 or (amax is not None and (amax.numel() != 1 or float(amax) == value)):
        return amax
    return torch.tensor(value) if amax is None else torch.full_like(amax, value)


def _scalar(amax: torch.Tensor | None) -> float:
    """An amax for the reduction: -1 where there is none or where it is no scalar; NaN counts as 0."""
    if amax is None or amax.numel() != 1:
        return -1.0
    value = float(amax)
    return value if value == value else 0.0


def _device() -> torch.device:
    import torch

    backend = torch.distributed.get_backend()
    return torch.device("cuda", torch.cuda.current_device()) if backend == "nccl" else torch.device("cpu")


def fuse_global_scales(original: Callable[..., dict[str, torch.Tensor]], *args: Any, **kwargs: Any) -> Any:
    """For ``verl.utils.qat.quantizer.fuse_global_scales``: an all-zero weight gets scale 1, not infinity.

    Compressed-tensors' global scale is 2688 / amax; infinity times a zero block is NaN.
    """
    import torch

    fused = original(*args, **kwargs)
    return {
        name: torch.where(torch.isfinite(scale) & (scale > 0), scale, torch.ones_like(scale))
        for name, scale in fused.items()
    }
