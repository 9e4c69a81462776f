"""NVFP4 scales in vLLM's Marlin format: one meaning over every vLLM release.

An NVFP4 weight is ``fp4 * scale[block of 16] * global_scale``; block scales are E4M3,
the global scale is one fp32 per tensor.  Marlin wants the block scales as "S0E5M3"
bytes (the high byte of ``half(scale * factor * 2**7) << 1``) and the global scale
multiplied by a power of two that depends on the activation dtype **and divided by
the same factor**.  Releases differ in who computes the factor and what comes back:

=================  =======================================  =========================
vLLM               ``nvfp4_marlin_process_scales``          ``..._process_global_scale``
=================  =======================================  =========================
0.10.2 - 0.18.x    Tensor, never a factor                   half or bf16 tensor only
0.19.x             (Tensor, float) from the smallest scale  any dtype with ``a_dtype``
0.20.x and newer   (Tensor, float) from the largest scale   any dtype with ``a_dtype``
=================  =======================================  =========================

The behaviour here is that of 0.20 and newer on all of them.  Pure torch, no upstream
is imported; vLLM's functions are passed in.  Upstream: vLLM releases named above.
"""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import torch

    ScaleAndFactor: TypeAlias = tuple[torch.Tensor, float]

logger = logging.getLogger("verl_compat.marlin")

GROUP_SIZE = 16
"""Elements that share one NVFP4 block scale."""

E4M3_MAX = 448.0
_SHIFT = 7  # the byte holds scale * 2**7
_SMALLEST = 2.0  # scale * factor * 2**7 below this has no S0E5M3 code with its top bit set

# Byte order within each four columns; its own inverse.
_COLUMN_ORDER = (0, 2, 1, 3)

_warned: set[str] = set()


def warn_once(message: str) -> None:
    """Log one warning per text and process."""
    if message not in _warned:
        _warned.add(message)
        logger.warning("%s", message)


# --- return shapes -----------------------------------------------------------


def split_marlin_scale(value: Any) -> ScaleAndFactor:
    """``(scales, factor)`` from whatever ``nvfp4_marlin_process_scales`` returned.

    Args:
        value: a tensor (vLLM up to 0.18: factor 1.0) or a pair of tensor and factor
            (0.19 and newer); the factor may be a number or a one-element tensor.

    Raises:
        TypeError: anything else, or a factor that is not a finite positive number.
    """
    if isinstance(value, (tuple, list)):
        if len(value) != 2:
            raise TypeError(f"expected (scales, factor) from vLLM, got {len(value)} values")
        scales, factor = value
        number = 1.0 if factor is None else float(factor)
        if not (math.isfinite(number) and number > 0.0):
            raise TypeError(f"expected a finite positive Marlin scale factor, got {number}")
    else:
        scales, number = value, 1.0
    if not hasattr(scales, "dtype"):
        raise TypeError(f"expected a tensor of Marlin scales, got {type(scales).__name__}")
    return scales, number


def unwrap_marlin_scale(value: Any, factor: float | None = None) -> torch.Tensor:
    """The scales alone, for a caller that chose the factor itself.

    Dropping a factor that vLLM chose makes weights wrong by a power of two, so say
    which factor was asked for: a different one raises ``ValueError``.
    """
    scales, got = split_marlin_scale(value)
    if factor is not None and got != factor:
        raise ValueError(f"asked for Marlin scale factor {factor}, vLLM used {got}")
    return scales


# --- guarded division --------------------------------------------------------


def safe_reciprocal(value: torch.Tensor, name: str = "") -> torch.Tensor:
    """``1 / value`` in fp32 that is finite wherever ``value`` is.

    ============================  ==========================================
    value                         result
    ============================  ==========================================
    zero, negative zero           0
    so small that 1/x overflows   largest finite number, with the sign of x
    infinity                      0
    NaN                           NaN (kept: it is the caller's error)
    empty                         empty
    ============================  ==========================================

    With ``name``, the first value that is not a normal number gives one warning that
    names it; this reads one flag from the device.
    """
    import torch

    wide = value.to(torch.float32)
    if name:
        _warn_abnormal(wide, name, "reciprocal")
    largest = torch.finfo(torch.float32).max
    result = torch.where(wide == 0, torch.zeros_like(wide), wide.reciprocal())
    return result.clamp(min=-largest, max=largest)


def safe_divide(numerator: torch.Tensor, divisor: Any, name: str = "") -> torch.Tensor:
    """``numerator / divisor``; a divisor that is no finite positive number counts as 1.

    For a global scale divided by a Marlin factor, or by another scale.  Zero, NaN,
    infinite and negative divisors leave the numerator as it is, with one warning that
    names ``name``.  ``divisor`` is a number or a tensor that broadcasts.  A finite
    numerator gives a finite result: overflow is clamped to the largest finite number.
    """
    import torch

    if isinstance(divisor, torch.Tensor):
        good = torch.isfinite(divisor) & (divisor > 0)
        if name and good.numel() and not bool(good.all()):
            warn_once(f"{name}: divisor that is not finite and positive counts as 1")
        divisor = torch.where(good, divisor, torch.ones_like(divisor))
    elif not (math.isfinite(divisor) and divisor > 0):
        warn_once(f"{name or 'scale'}: divisor {divisor} is not finite and positive, counts as 1")
        divisor = 1.0
    result = numerator / divisor
    if not result.is_floating_point():
        return result
    clamped = result.clamp(min=-torch.finfo(result.dtype).max, max=torch.finfo(result.dtype).max)
    return torch.where(torch.isfinite(numerator), clamped, result)


def _warn_abnormal(value: torch.Tensor, name: str, what: str) -> None:
    if value.numel() and bool(abnormal(value)):
        warn_once(
            f"{name}: zero, subnormal, infinite or NaN value in a {what}; "
            "see verl_compat.shims.marlin.safe_reciprocal for what is used instead"
        )


def abnormal(value: torch.Tensor) -> torch.Tensor:
    """One-element bool tensor: any zero, subnormal, infinite or NaN entry (no host read)."""
    import torch

    size = value.to(torch.float32).abs()
    return ((size < torch.finfo(torch.float32).tiny) | ~torch.isfinite(size)).any()


# --- the factor --------------------------------------------------------------


def scale_factor_tensor(scales: torch.Tensor, a_dtype: torch.dtype | None = None) -> torch.Tensor:
    """The power of two that lifts the largest scale to E4M3's range, as a 0-d fp32 tensor.

    1 for half activations (their range needs none), for all-zero, empty, negative-only
    or NaN scales and where the largest is infinite.  Several experts: pass the
    scales of all, so that they share one factor.  No host read.
    """
    import torch

    one = torch.ones((), dtype=torch.float32, device=scales.device)
    if a_dtype == torch.half or scales.numel() == 0:
        return one
    largest = scales.to(torch.float32).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).max()
    factor = (E4M3_MAX / largest).log2().floor().exp2()
    return torch.where((largest > 0) & (largest < E4M3_MAX), factor, one)


def scale_factor(scales: torch.Tensor, a_dtype: torch.dtype | None = None) -> float:
    """:func:`scale_factor_tensor` as a float, at least 1.0: the one host read per layer."""
    return float(scale_factor_tensor(scales, a_dtype))


def normalise(scales: torch.Tensor, a_dtype: torch.dtype | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales times their factor, unrepresentable ones set to zero; and the factor (0-d).

    What vLLM 0.20 and newer do inside ``nvfp4_marlin_process_scales``, done before it:
    older releases then need no factor (up to 0.18) or find one that cannot overflow
    (0.19 takes it from the smallest scale, and half then overflows to infinity at 448).
    Values keep their dtype; E4M3 values stay exact.
    """
    import torch

    factor = scale_factor_tensor(scales, a_dtype)
    lifted = scales.to(torch.float32) * factor
    lifted = torch.where(lifted * 2**_SHIFT < _SMALLEST, torch.zeros_like(lifted), lifted)
    return lifted.to(scales.dtype), factor


# --- one calling convention over all releases --------------------------------


def process_scales(
    upstream: Callable[..., Any],
    marlin_scales: torch.Tensor,
    *,
    factor: float | None = None,
    a_dtype: torch.dtype | None = None,
) -> ScaleAndFactor:
    """Call vLLM's ``nvfp4_marlin_process_scales`` so that it means the same everywhere.

    Args:
        upstream: that function, of any release from 0.10.2.
        marlin_scales: permuted block scales, half, bf16 or fp32, columns a multiple of 4.
        factor: use this factor (experts that share one); None finds it.
        a_dtype: activation dtype; None means the dtype of the scales.

    Returns:
        the processed E4M3-typed bytes and the factor by which the caller must divide
        the global scale.
    """
    import torch

    a_dtype = marlin_scales.dtype if a_dtype is None else a_dtype
    chosen = scale_factor(marlin_scales, a_dtype) if factor is None else float(factor)
    lifted = marlin_scales.to(torch.float32) * chosen
    lost = lifted * 2**_SHIFT < _SMALLEST  # 0.20 and newer do this themselves
    if "scale_factor" in inspect.signature(upstream).parameters:
        kept = torch.where(lost, torch.zeros_like(marlin_scales), marlin_scales)
        value = upstream(kept, scale_factor=chosen, a_dtype=a_dtype)
        return unwrap_marlin_scale(value, chosen), chosen
    return unwrap_marlin_scale(upstream(torch.where(lost, torch.zeros_like(lifted), lifted).to(torch.half))), chosen


def process_global_scale(
    upstream: Callable[..., Any],
    global_scale: torch.Tensor,
    *,
    factor: float = 1.0,
    a_dtype: torch.dtype,
    name: str = "global scale",
) -> torch.Tensor:
    """Call vLLM's ``nvfp4_marlin_process_global_scale`` and divide by the factor, once.

    fp32 stays fp32 where vLLM accepts it (0.19 and newer); older releases take and
    return ``a_dtype``, which their kernels read.

    Raises:
        TypeError: ``a_dtype`` is neither half nor bfloat16.
    """
    import torch

    if a_dtype not in (torch.half, torch.bfloat16):
        raise TypeError(f"expected torch.float16 or torch.bfloat16 activations, got {a_dtype}")
    if "a_dtype" in inspect.signature(upstream).parameters:
        processed = upstream(global_scale.to(torch.float32), a_dtype)
        return safe_divide(processed, factor, name)
    # The division comes first: dividing a rounded value by a power of two is exact,
    # and the product could overflow before it.
    return upstream(safe_divide(global_scale.to(torch.float32), factor, name).to(a_dtype))


def process_expert_scales(
    upstream: Callable[..., Any],
    permute: Callable[..., torch.Tensor],
    scales: torch.Tensor,
    *,
    size_k: int,
    size_n: int,
    a_dtype: torch.dtype,
) -> ScaleAndFactor:
    """Block scales of all experts of w13 or of w2, with **one** factor for all.

    Args:
        upstream: vLLM's ``nvfp4_marlin_process_scales``.
        permute: vLLM's ``marlin_permute_scales``.
        scales: ``(experts, size_n, size_k / 16)`` E4M3.

    Returns:
        processed scales ``(experts, size_k / 16, size_n)`` and the shared factor.
    """
    import torch

    wide = scales.to(a_dtype)
    shared = scale_factor(wide, a_dtype)
    done = [
        process_scales(
            upstream,
            permute(s=expert.T, size_k=size_k, size_n=size_n, group_size=GROUP_SIZE),
            factor=shared,
            a_dtype=a_dtype,
        )[0]
        for expert in wide
    ]
    return torch.stack(done), shared


# --- and back ----------------------------------------------------------------


def global_scale_exponent(a_dtype: torch.dtype) -> int:
    """The power of two that Marlin's global scale carries for an activation dtype."""
    import torch

    exponent_bits = {torch.half: 5, torch.bfloat16: 8}[a_dtype]
    return int(2 ** (exponent_bits - 1) - 2) - _SHIFT


def decode_scales(processed: torch.Tensor) -> torch.Tensor:
    """Processed S0E5M3 bytes to fp32 ``scale * factor``, in the column order before processing."""
    import torch

    bits = processed.view(torch.uint8).to(torch.int16) << _SHIFT
    values = bits.view(torch.half).to(torch.float32) / 2**_SHIFT
    order: Sequence[int] = list(_COLUMN_ORDER)
    return values.view(-1, 4)[:, order].view(values.shape)


def dequantize(processed: torch.Tensor, global_scale: torch.Tensor, a_dtype: torch.dtype) -> torch.Tensor:
    """Real ``scale * global_scale`` in fp64, from what Marlin is given.

    ``global_scale`` is the processed one, already divided by the factor.
    """
    import torch

    exponent = global_scale_exponent(a_dtype)
    return decode_scales(processed).to(torch.float64) * (global_scale.to(torch.float64) * 2.0**-exponent)
