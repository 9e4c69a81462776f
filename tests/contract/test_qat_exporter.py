"""verl's ModelOpt weight exporter with the real ModelOpt (verl_ge_0_8_qat_exporter_amax)."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("modelopt", reason="verl's exporter needs nvidia-modelopt, which this environment does not have")
pytest.importorskip("verl.utils.modelopt", reason="verl has a ModelOpt exporter from 0.8 on")


@pytest.fixture(scope="module")
def exporter() -> Any:
    """The real module, repaired on import."""
    import verl.utils.modelopt.qat_weight_exporter as module

    import verl_compat.auto  # noqa: F401

    assert hasattr(module.QATWeightExporter._quantize_nvfp4, "__wrapped__"), "the adapter was not applied"
    return module


def export(
    module: Any, weight: torch.Tensor, amax: torch.Tensor | None, guarded: bool = True
) -> dict[str, torch.Tensor]:
    quantize = module.QATWeightExporter._quantize_nvfp4
    quantize = quantize if guarded else quantize.__wrapped__
    meta = module._QuantMeta(qformat=module.QUANTIZATION_NVFP4, block_size=16, weight_amax=amax)
    return dict(quantize(object.__new__(module.QATWeightExporter), "mlp.experts.3.down_proj.weight", weight, meta))


def bits(tensor: torch.Tensor) -> list[int]:
    return tensor.contiguous().view(-1).view(torch.uint8).tolist()


def test_an_all_zero_weight_is_exported_with_finite_scales(exporter: Any) -> None:
    zero = torch.zeros(32, 64, dtype=torch.bfloat16)
    before = export(exporter, zero, torch.tensor(0.0), guarded=False)
    assert torch.isnan(before["mlp.experts.3.down_proj.weight_scale"].float()).any()
    after = export(exporter, zero, torch.tensor(0.0))
    assert before.keys() == after.keys()
    assert all(torch.isfinite(value.float()).all() for value in after.values())
    assert not (after["mlp.experts.3.down_proj.weight"].view(torch.uint8) & 0x77).any()
    assert float(after["mlp.experts.3.down_proj.weight_scale_2"]) > 0


def test_amax_none_is_the_weights_own(exporter: Any) -> None:
    weight = torch.randn(32, 64, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    with pytest.raises(AttributeError):
        export(exporter, weight, None, guarded=False)
    got, want = export(exporter, weight, None), export(exporter, weight, weight.abs().amax().float(), guarded=False)
    assert all(bits(got[name]) == bits(want[name]) for name in want)


def test_an_ordinary_weight_is_exported_bit_for_bit_as_before(exporter: Any) -> None:
    weight = torch.randn(32, 64, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    amax = weight.abs().amax().float() * 1.5
    got, want = export(exporter, weight, amax), export(exporter, weight, amax, guarded=False)
    assert all(bits(got[name]) == bits(want[name]) for name in want)


@pytest.mark.parametrize(("amax", "scale"), [(0.0, 1.0), (float("nan"), 1.0), (2688.0, 1.0), (None, None)])
def test_input_scale_of_a_layer_that_saw_no_activation(exporter: Any, amax: float | None, scale: float | None) -> None:
    meta = exporter._QuantMeta(
        qformat=exporter.QUANTIZATION_NVFP4,
        block_size=16,
        weight_amax=torch.tensor(1.0),
        input_amax=None if amax is None else torch.tensor(amax),
    )
    found = exporter._compute_input_scale(meta)
    assert found is None if scale is None else float(found) == scale
