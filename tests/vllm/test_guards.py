"""Division by scales, return shapes, and the repairs of a layer's scales: no vLLM needed."""

from __future__ import annotations

import logging
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_compat.shims import marlin, marlin_guard, marlin_host

LARGEST = torch.finfo(torch.float32).max


@pytest.fixture(autouse=True)
def _fresh_warnings() -> None:
    marlin._warned.clear()
    marlin_host.forget()


@pytest.mark.parametrize(
    ("value", "result"),
    [(0.0, 0.0), (-0.0, 0.0), (1e-40, LARGEST), (-1e-40, -LARGEST), (math.inf, 0.0), (2.0, 0.5), (-4.0, -0.25)],
)
def test_reciprocal(value: float, result: float) -> None:
    assert float(marlin.safe_reciprocal(torch.tensor(value))) == result


def test_reciprocal_of_nan_stays_nan_and_of_nothing_is_nothing() -> None:
    assert math.isnan(float(marlin.safe_reciprocal(torch.tensor(math.nan))))
    assert marlin.safe_reciprocal(torch.empty(0)).shape == (0,)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=8))
def test_a_finite_value_never_gives_nan_or_infinity(values: list[float]) -> None:
    tensor = torch.tensor(values, dtype=torch.float32)
    assert torch.isfinite(marlin.safe_reciprocal(tensor)).all()
    for divisor in (0.0, -0.0, math.nan, math.inf, -1.0, 1e-45, tensor):
        assert torch.isfinite(marlin.safe_divide(tensor, divisor)).all()


@pytest.mark.parametrize("divisor", [0.0, math.nan, math.inf, -2.0])
def test_a_divisor_that_is_no_scale_counts_as_one_with_one_warning(
    divisor: float, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "verl_compat.marlin"):
        for _ in range(3):
            assert float(marlin.safe_divide(torch.tensor(3.0), divisor, "layers.0.qkv_proj")) == 3.0
    assert len(caplog.records) == 1
    assert "layers.0.qkv_proj" in caplog.text


def test_reciprocal_warns_once_and_names_the_layer(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "verl_compat.marlin"):
        for _ in range(3):
            marlin.safe_reciprocal(torch.tensor([1.0, 0.0]), "layers.3.down_proj.input_scale")
        marlin.safe_reciprocal(torch.tensor([1.0]), "layers.4.down_proj.input_scale")
    assert [record.getMessage().split(":")[0] for record in caplog.records] == ["layers.3.down_proj.input_scale"]


def test_split_accepts_what_every_release_returns() -> None:
    scales = torch.ones(2, 4)
    assert marlin.split_marlin_scale(scales) == (scales, 1.0)
    assert marlin.split_marlin_scale((scales, 4.0)) == (scales, 4.0)
    assert marlin.split_marlin_scale((scales, torch.tensor(8.0))) == (scales, 8.0)
    assert marlin.split_marlin_scale([scales, None]) == (scales, 1.0)


@pytest.mark.parametrize("value", [(torch.ones(1), 0.0), (torch.ones(1), math.nan), (torch.ones(1), 1.0, 2.0), "x"])
def test_split_refuses_what_no_release_returns(value: object) -> None:
    with pytest.raises(TypeError):
        marlin.split_marlin_scale(value)


def test_unwrap_does_not_drop_another_factor_than_the_one_asked_for() -> None:
    scales = torch.ones(2, 4)
    assert marlin.unwrap_marlin_scale((scales, 4.0), 4.0) is scales
    with pytest.raises(ValueError, match=r"4\.0"):
        marlin.unwrap_marlin_scale((scales, 4.0), 1.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float8_e4m3fn, torch.int8])
def test_only_activations_that_marlin_has(dtype: torch.dtype) -> None:
    with pytest.raises(TypeError, match="bfloat16"):
        marlin.process_global_scale(lambda x, a_dtype: x, torch.ones(1), a_dtype=dtype)


def layer_with(**parameters: torch.Tensor) -> torch.nn.Module:
    layer = torch.nn.Module()
    layer.prefix = "layers.7.mlp"
    for name, value in parameters.items():
        layer.register_parameter(name, torch.nn.Parameter(value, requires_grad=False))
    return layer


def test_zero_divisors_become_infinite_and_zero_input_scales_one() -> None:
    layer = layer_with(weight_global_scale=torch.zeros(2), input_global_scale=torch.tensor([0.0, 3.0]))
    marlin_guard.guard_scales(layer, True, compressed_tensors=True, weight_only=False)
    assert float(1.0 / layer.weight_global_scale.max()) == 0.0
    assert layer.input_global_scale.tolist() == [0.0, 3.0]  # the largest shard decides, and it is right
    layer = layer_with(
        w13_weight_global_scale=torch.tensor([[2.0, 2.0], [0.0, 0.0]]), w13_input_scale=torch.zeros(2, 2)
    )
    marlin_guard.guard_scales(layer, True, compressed_tensors=True, weight_only=True)
    assert (1.0 / layer.w13_weight_global_scale).tolist() == [[0.5, 0.5], [0.0, 0.0]]


def test_reload_reports_all_layers_with_one_warning_each(caplog: pytest.LogCaptureFixture) -> None:
    bad, good = layer_with(weight_scale_2=torch.zeros(1)), layer_with(weight_scale_2=torch.ones(1))
    good.prefix = "layers.8.mlp"
    with caplog.at_level(logging.WARNING, "verl_compat.marlin"):
        for _ in range(2):
            for layer in (bad, good):
                marlin_guard.guard_scales(layer, False, compressed_tensors=False, weight_only=True)
            assert marlin_guard.report() == ["layers.7.mlp"]
    assert len(caplog.records) == 1
    assert marlin_guard.report() == []


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.half], ids=["bf16", "fp16"])
@pytest.mark.parametrize("compressed", [False, True])
def test_normalising_keeps_the_product(dtype: torch.dtype, compressed: bool) -> None:
    scales = torch.tensor([[0.25, 0.5, 1.0, 3.5]]).to(torch.float8_e4m3fn)
    total = torch.tensor([8.0 if compressed else 0.125])
    name = "weight_global_scale" if compressed else "weight_scale_2"
    layer = layer_with(weight_scale=scales.clone(), **{name: total.clone()})
    layer.params_dtype = dtype
    marlin_guard.normalise_for_old_marlin(layer, compressed)
    after = getattr(layer, name)
    multiplier = 1.0 / after if compressed else after
    assert torch.equal(layer.weight_scale.float() * multiplier, scales.float() * 0.125)
    assert float(layer.weight_scale.float().max()) == (448.0 if dtype == torch.bfloat16 else 3.5)
