"""Trainer side: verl's FSDP quantiser on an all-zero weight; amax shared between tensor parallel ranks.

The ModelOpt exporter itself runs in ``tests/contract/test_qat_exporter.py``, where ModelOpt is.
Adapters: verl_ge_0_7_1_qat_zero_weight, verl_ge_0_7_1_qat_needs_vllm_0_12.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import VERL, verl_module

from verl_compat.patches import commit, prepare
from verl_compat.registry import load
from verl_compat.shims import qat_export
from verl_compat.shims.marlin_verl import too_old


def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """compressed-tensors, of which the quantiser reads two number formats here."""
    given = {"FP4_E2M1_DATA": SimpleNamespace(max=6.0), "FP8_E4M3_DATA": SimpleNamespace(max=448.0)}
    names = {
        "compressed_tensors.compressors.quantized_compressors.fp4_quantized": {"NVFP4PackedCompressor": object},
        "compressed_tensors.quantization.quant_args": {
            **given,
            "QuantizationArgs": object,
            "QuantizationStrategy": object,
            "QuantizationType": object,
        },
        "compressed_tensors.quantization.utils.helpers": {"generate_gparam": None},
    }
    for name, values in names.items():
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            module = ModuleType(".".join(parts[:end]))
            module.__path__ = []
            monkeypatch.setitem(sys.modules, module.__name__, module)
        vars(sys.modules[name]).update(values)


@pytest.mark.parametrize("version", VERL["qat"])
def test_an_all_zero_weight_gets_finite_scales(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)
    module: Any = verl_module(version, "verl.utils.qat.quantizer")
    module.get_torch_device = lambda: None
    zero, other = torch.zeros(4, 32), torch.randn(4, 32)
    scales = {
        "mlp.down_proj": torch.tensor([float("inf")]),  # 2688 / 0
        "mlp.gate_proj": torch.tensor([float("inf")]),
        "mlp.up_proj": 2688.0 / other.abs().max().reshape(1),
    }
    before = module.fuse_global_scales(scales)
    assert not torch.isfinite(module.compute_blockwise_scale(zero, before["mlp.down_proj"]).float()).all()
    commit(prepare(load("verl_ge_0_7_1_qat_zero_weight"), module))
    after = module.fuse_global_scales(scales)
    assert torch.isfinite(module.compute_blockwise_scale(zero, after["mlp.down_proj"]).float()).all()
    assert torch.equal(after["mlp.up_proj"], before["mlp.up_proj"])  # fused with its neighbour, unchanged
    assert torch.equal(after["mlp.gate_proj"], after["mlp.up_proj"])


@dataclass
class Meta:
    """verl's record of one quantised parameter."""

    weight_amax: torch.Tensor | None
    input_amax: torch.Tensor | None = None
    input_quantizer: Any = None


@pytest.mark.parametrize("amax", [None, torch.tensor(0.0), torch.tensor(float("nan")), torch.tensor(float("inf"))])
def test_a_useless_amax_is_replaced_by_the_weights_own(amax: torch.Tensor | None) -> None:
    weight = torch.tensor([[0.5, -2.0]])
    assert float(qat_export.usable_amax(amax, weight, "w")) == 2.0
    tiny = qat_export.usable_amax(amax, torch.zeros(2, 2), "w")
    assert float(tiny) / qat_export.AMAX_DENOMINATOR == qat_export.TINY_GLOBAL_SCALE


def test_a_good_amax_is_returned_itself() -> None:
    amax = torch.tensor(3.0)
    assert qat_export.usable_amax(amax, torch.ones(1), "w") is amax


WORKER = textwrap.dedent(
    """
    import sys, torch, torch.distributed as dist
    from dataclasses import dataclass
    from typing import Any
    from verl_compat.shims import qat_export

    @dataclass
    class Meta:
        weight_amax: Any
        input_amax: Any = None
        input_quantizer: Any = None

    rank, store = int(sys.argv[1]), sys.argv[2]
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)
    quantizer = object()
    metas = {
        "a.weight": Meta(torch.tensor(1.0 + rank), torch.tensor(5.0 - rank), quantizer),
        "b.weight": Meta(None if rank else torch.tensor(7.0)),
        "c.weight": Meta(None),
        "d.weight": Meta(torch.ones(4) * rank),
    }
    target = dict(metas)
    qat_export.reduce_amax(target, metas, dist.group.WORLD)
    assert float(target["a.weight"].weight_amax) == 2.0
    assert float(target["a.weight"].input_amax) == 5.0
    assert (target["a.weight"].input_quantizer is quantizer) == (rank == 0)
    assert float(target["b.weight"].weight_amax) == 7.0
    assert target["c.weight"].weight_amax is None
    assert target["d.weight"].weight_amax is metas["d.weight"].weight_amax
    other = {f"{rank}.weight": Meta(torch.tensor(1.0 + rank))}
    kept = dict(other)
    qat_export.reduce_amax(kept, other, dist.group.WORLD)
    assert kept == other
    """
)


def test_amax_is_the_largest_of_the_tensor_parallel_ranks(tmp_path: Path) -> None:
    import verl_compat

    paths = os.pathsep.join([str(Path(next(iter(verl_compat.__path__))).parent), *sys.path])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    ranks = [
        subprocess.Popen([sys.executable, "-c", WORKER, str(rank), str(tmp_path / "store")], env=environment)
        for rank in (0, 1)
    ]
    try:
        assert [rank.wait(timeout=300) for rank in ranks] == [0, 0]
    finally:
        for rank in ranks:
            rank.kill()


def test_an_old_vllm_is_told_clearly() -> None:
    text = too_old(ModuleType("m"), {"verl": "0.9.1", "vllm": "0.11.2"})
    assert "0.11.2" in text
    assert "vLLM 0.12" in text
    assert load("verl_ge_0_7_1_qat_needs_vllm_0_12").applies["vllm"] == "<0.12"
