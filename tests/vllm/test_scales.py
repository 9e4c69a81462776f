"""Marlin scales mean the same number on every vLLM, with hypothesis; and a mutant that ignores the factor is caught."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from verl_compat.shims import marlin
from verl_compat.shims.marlin_resolve import need

QUICK = settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
E4M3 = torch.arange(0, 127, dtype=torch.uint8).view(torch.float8_e4m3fn).to(torch.float32)  # 0 ... 448

Process = Callable[..., tuple[torch.Tensor, float]]


@st.composite
def scale_tensors(draw: st.DrawFn) -> torch.Tensor:
    """E4M3 block scales ``(groups, columns)``: random, all-zero, one-hot, extreme, of mixed magnitude."""
    rows, columns = draw(st.integers(1, 4)), 4 * draw(st.integers(1, 4))
    kind = draw(st.sampled_from(["random", "zero", "one-hot", "smallest", "largest", "mixed", "low", "ends"]))
    seed = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    size = (rows, columns)
    if kind == "zero":
        return torch.zeros(size)
    if kind == "smallest":
        return torch.full(size, 2.0**-9)
    if kind == "largest":
        return torch.full(size, 448.0)
    index = torch.randint(0, len(E4M3), size, generator=seed)
    if kind == "one-hot":
        scales = torch.zeros(size)
        scales[draw(st.integers(0, rows - 1)), draw(st.integers(0, columns - 1))] = E4M3[int(index[0, 0])]
        return scales
    if kind == "low":
        return E4M3[index % 40]
    if kind == "ends":
        return torch.where(index % 2 == 0, torch.tensor(2.0**-9), torch.tensor(448.0))
    if kind == "mixed":
        return torch.where(index % 3 == 0, E4M3[index % 16], E4M3[index])
    return E4M3[index]


GLOBALS = st.floats(min_value=2.0**-12, max_value=4.0, width=32)


def check(vllm: str, process: Process, scales: torch.Tensor, global_scale: float, dtype: torch.dtype) -> None:
    """The property of the issue: what Marlin is given is scale x global scale, within FP8 rounding."""
    total = torch.tensor([global_scale])
    processed, factor = process(need("nvfp4_marlin_process_scales"), scales.to(dtype), a_dtype=dtype)
    upstream = need("nvfp4_marlin_process_global_scale")
    done = marlin.process_global_scale(upstream, total, factor=factor, a_dtype=dtype)
    got, want = marlin.dequantize(processed, done, dtype), scales.double() * total.double()
    assert torch.isfinite(got).all()
    # Old kernels read the global scale in the activation dtype; newer ones in fp32.
    old = tuple(map(int, vllm.split(".")[:2])) < (0, 19)
    rounding = (torch.finfo(dtype).eps if old else 2.0**-20) * want
    # S0E5M3 has no code below 2 * 2**-7 / factor; the factor lifts the largest scale to at least 224.
    smallest = 2.0**-6 if dtype == torch.half else float(scales.max()) * 2.0**-13
    lost = torch.where(scales.double() < smallest, want, torch.zeros_like(want))
    assert ((got - want).abs() <= rounding + lost).all(), (got, want)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.half], ids=["bf16", "fp16"])
def test_scale_times_global_scale_is_kept(vllm: str, dtype: torch.dtype) -> None:
    @QUICK
    @given(scales=scale_tensors(), global_scale=GLOBALS)
    def prove(scales: torch.Tensor, global_scale: float) -> None:
        check(vllm, marlin.process_scales, scales, global_scale, dtype)

    prove()


def ignores_the_factor(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, float]:
    """The mutant: verl's ``_unwrap_marlin_scale`` on the way, the factor dropped."""
    return marlin.process_scales(*args, **kwargs)[0], 1.0


def test_an_implementation_that_ignores_the_factor_fails(vllm: str) -> None:
    scales = torch.full((2, 8), 2.0**-3)
    check(vllm, marlin.process_scales, scales, 0.01, torch.bfloat16)
    with pytest.raises(AssertionError):
        check(vllm, ignores_the_factor, scales, 0.01, torch.bfloat16)


def test_experts_of_very_different_magnitude_share_one_factor(vllm: str) -> None:
    experts = torch.stack([torch.full((64, 4), value) for value in (2.0**-3, 2.0, 208.0, 0.0)])
    experts = experts.to(torch.float8_e4m3fn)
    done, factor = marlin.process_expert_scales(
        need("nvfp4_marlin_process_scales"),
        need("marlin_permute_scales"),
        experts,
        size_k=64,
        size_n=64,
        a_dtype=torch.bfloat16,
    )
    assert factor == 2.0  # 448 / 208, rounded down to a power of two
    upstream = need("nvfp4_marlin_process_global_scale")
    total = marlin.process_global_scale(upstream, torch.tensor([0.5]), factor=factor, a_dtype=torch.bfloat16)
    for expert, processed in zip(experts, done, strict=True):
        real = marlin.dequantize(processed, total, torch.bfloat16)
        assert torch.equal(real, torch.full_like(real, float(expert[0, 0])) * 0.5)


def test_a_global_scale_in_fp32_is_not_rounded_to_bf16(vllm: str) -> None:
    if tuple(map(int, vllm.split(".")[:2])) < (0, 19):
        pytest.skip(f"vLLM {vllm} takes a global scale of the activation dtype only")
    total = torch.tensor([1.0 + 2.0**-20])
    upstream = need("nvfp4_marlin_process_global_scale")
    done = marlin.process_global_scale(upstream, total, a_dtype=torch.bfloat16)
    assert done.dtype == torch.float32
    assert torch.equal(done * 2.0**-119, total)


def test_every_release_gives_the_same_bytes_and_factor(vllm: str) -> None:
    scales = E4M3[torch.randint(0, len(E4M3), (8, 16), generator=torch.Generator().manual_seed(7))] * 0.25
    processed, factor = marlin.process_scales(need("nvfp4_marlin_process_scales"), scales.to(torch.bfloat16))
    mine = (scales * factor).to(torch.half)
    mine = torch.where(mine * 128 < 2, torch.zeros_like(mine), mine)
    assert torch.equal(marlin.decode_scales(processed), mine.float())
    assert factor == 4.0


def test_release_0_19_does_not_overflow_between_the_smallest_and_the_largest_scale(vllm: str) -> None:
    """Its own factor, taken from the smallest scale, makes 448 infinite in half."""
    scales = torch.tensor([[2.0**-9, 448.0, 448.0, 448.0]], dtype=torch.bfloat16)
    upstream = need("nvfp4_marlin_process_scales")
    if vllm == "0.19.1":
        assert not torch.isfinite(marlin.decode_scales(upstream(scales)[0])).all()
    processed, factor = marlin.process_scales(upstream, scales)
    assert factor == 1.0
    assert torch.equal(marlin.decode_scales(processed)[0, 1:], torch.full((3,), 448.0))
