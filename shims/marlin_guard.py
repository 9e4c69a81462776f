"""Repair NVFP4 scales of a layer, in checkpoint format, before vLLM converts them.

Done in place on the device; the host reads one flag per layer at the first load, and
one flag for all layers of a reload (:func:`report`).  vLLM's own functions stay as they
are: they get input on which they are right.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from verl_compat.shims import marlin, marlin_host

if TYPE_CHECKING:
    import torch

# Layers whose scales were abnormal, read since the last report.
_abnormal: list[str] = []


def guard_scales(layer: torch.nn.Module, first_load: bool, compressed_tensors: bool, weight_only: bool) -> None:
    """Replace global and input scales from which vLLM would make infinities or NaN.

    ======================================  ==================================================
    scale, as the checkpoint has it         repair
    ======================================  ==================================================
    divisor of the weight, zero             +infinity, so that vLLM's 1/x is 0 (weight is 0)
    the same, so small that 1/x overflows   the smallest normal number
    input scale (either kind), zero         1.0 (no activation was seen: nothing to scale)
    anything NaN, multiplier infinite       left alone, reported
    ======================================  ==================================================

    A dense layer made of several shards (q, k, v) has one entry per shard, of which vLLM
    takes the largest; a zero is repaired only where all are zero.

    Args:
        layer: with checkpoint-format parameters.
        first_load: report at once; else with the next :func:`report`.
        compressed_tensors: global scales are divisors.
        weight_only: the kernel does not read input scales; they are not reported then.
    """
    flags = []
    for gemm in ("", "w13_", "w2_"):
        weight_name = gemm + ("weight_global_scale" if compressed_tensors else "weight_scale_2")
        input_name = gemm + ("input_global_scale" if compressed_tensors else "input_scale")
        weight = layer._parameters.get(weight_name)
        if weight is not None and weight.numel():
            flags.append(marlin.abnormal(_effective(weight.data, gemm)))
            if compressed_tensors:
                _repair_divisor(weight.data, shards=not gemm)
        scale = layer._parameters.get(input_name)
        if scale is not None and scale.numel():
            if not weight_only:
                flags.append(marlin.abnormal(_effective(scale.data, gemm)))
            _repair_input(scale.data, shards=not gemm)
    if flags:
        _note(layer, flags, first_load)


def _effective(scale: torch.Tensor, gemm: str) -> torch.Tensor:
    """What vLLM reads of it: the largest of a dense layer's shards, all of an MoE's."""
    return scale if gemm else scale.max().reshape(1)


def _repair_divisor(scale: torch.Tensor, shards: bool) -> None:
    import torch

    tiny = torch.finfo(torch.float32).tiny
    seen = scale.max() if shards else scale
    fixed = torch.where((scale > 0) & (scale < tiny), torch.full_like(scale, tiny), scale)
    scale.copy_(torch.where(seen == 0, torch.full_like(scale, float("inf")), fixed))


def _repair_input(scale: torch.Tensor, shards: bool) -> None:
    import torch

    seen = scale.max() if shards else scale
    scale.copy_(torch.where(seen == 0, torch.ones_like(scale), scale))


def normalise_for_old_marlin(layer: torch.nn.Module, compressed_tensors: bool) -> None:
    """Lift block scales to E4M3's range and compensate in the global scale, in place.

    For vLLM up to 0.18, whose Marlin path knows no factor (bf16 kernels read scales
    below 2**-6 as zero), and 0.19, whose factor can overflow half to infinity when a
    layer holds both very small and large scales.  The product of block and global scale
    does not change; experts share one factor per GEMM.  Does nothing for half.
    """
    dtype = getattr(layer, "params_dtype", None)
    for gemm in ("", "w13_", "w2_"):
        scales = layer._parameters.get(f"{gemm}weight_scale")
        name = gemm + ("weight_global_scale" if compressed_tensors else "weight_scale_2")
        total = layer._parameters.get(name)
        if scales is None or total is None or dtype is None or dtype.itemsize != 2 or str(dtype) == "torch.float16":
            continue
        lifted, factor = marlin.normalise(scales.data, dtype)
        scales.data.copy_(lifted)
        total.data.copy_(total.data * factor if compressed_tensors else total.data / factor)


@lru_cache(maxsize=8)
def needs_normalising(upstream: Any) -> bool:
    """Whether this vLLM's ``nvfp4_marlin_process_scales`` has no factor, or 0.19's.

    Asked of the function itself with four scales on the CPU: the smallest E4M3 number
    beside the largest, for which 0.20 and newer answer 1 and 0.19 answers 8.
    """
    import torch

    probe = torch.tensor([[2.0**-9, 448.0, 448.0, 448.0]], dtype=torch.bfloat16)
    value = upstream(probe)
    return not isinstance(value, tuple) or value[1] != 1.0


def _note(layer: torch.nn.Module, flags: list[torch.Tensor], first_load: bool) -> None:
    import torch

    name = str(getattr(layer, "prefix", None) or getattr(layer, "layer_name", None) or type(layer).__name__)
    marlin_host.flag(torch.stack(flags).any(), lambda is_set: _abnormal.append(name) if is_set else None)
    if first_load:
        report()


def report() -> list[str]:
    """Names of layers whose last load had an abnormal scale; one warning each, one host read for all."""
    marlin_host.read()
    names = list(_abnormal)
    _abnormal.clear()
    for name in names:
        _warn(name)
    return names


def _warn(name: str) -> None:
    marlin.warn_once(
        f"{name}: the checkpoint holds an NVFP4 global or input scale that is zero, subnormal, infinite or NaN; "
        "zero was repaired, NaN and infinity were not (see verl_compat.shims.marlin_guard.guard_scales)"
    )
