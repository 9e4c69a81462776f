"""How often a conversion reads a value back from the device: ours against vLLM's own, counted on a CPU.

On a GPU each such read waits for the device; ``tests/gpu/marlin_h200.py`` counts those waits themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import harness
import pytest
import torch
from test_layers import EXPERTS, HIDDEN, INTERMEDIATE, PAIRS, K, Model, N, Verl, moe_data
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from verl_compat.patches import undo
from verl_compat.shims import marlin_guard
from verl_compat.shims.marlin_resolve import need

READS = {"aten::_local_scalar_dense", "aten::is_nonzero", "aten::nonzero", "aten::equal"}


class HostReads(TorchDispatchMode):
    """Counts operations whose result the host waits for."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func._schema.name in READS
        return func(*args, **(kwargs or {}))


class ListReads(TorchFunctionMode):
    """Counts ``tolist()`` and copies to NumPy, which are no dispatched operation on a CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func in (torch.Tensor.tolist, torch.Tensor.numpy)
        return func(*args, **(kwargs or {}))


def host_reads(action: Callable[[], Any]) -> int:
    with HostReads() as operations, ListReads() as lists:
        action()
    return operations.count + lists.count


def dense(compressed: bool, seed: int, layer: Any = None) -> Any:
    if layer is None:
        build = harness.compressed_linear if compressed else harness.modelopt_linear
        _, layer = build(N, K, torch.bfloat16, True)
    harness.send_dense(layer, harness.Checkpoint.random(N, K, seed=seed, bias=True), compressed)
    return layer


def experts(compressed: bool, seed: int, layer: Any = None) -> Any:
    if layer is None:
        _, layer = harness.moe_layer(compressed, EXPERTS, HIDDEN, INTERMEDIATE, torch.bfloat16)
    harness.send_moe(layer, *moe_data(seed), compressed)
    return layer


def first_load(layer: Any) -> int:
    owner = layer.scheme if hasattr(layer, "scheme") else layer.quant_method
    return host_reads(lambda: owner.process_weights_after_loading(layer))


@pytest.mark.parametrize("send", [dense, experts])
@pytest.mark.parametrize(("version", "compressed"), PAIRS)
def test_no_more_host_reads_than_vllm(vllm: str, version: str, compressed: bool, send: Callable[..., Any]) -> None:
    own = first_load(send(compressed, 0))
    assert own
    verl = Verl(version, compressed)
    marlin_guard.needs_normalising(need("nvfp4_marlin_process_scales"))  # once a process, on a CPU tensor
    verl.apply()
    try:
        layer = send(compressed, 0)
        assert first_load(layer) <= own + 1  # the flag of an abnormal scale
        for seed in (1, 2, 3):
            verl.prepare(Model(layer))
            send(compressed, seed, layer)
            # The flags of all layers are read together once, at the end of a sync.
            assert host_reads(lambda: verl.process(Model(layer))) <= own + 1
    finally:
        undo(verl.steps)
        marlin_guard.report()


def test_the_flags_of_all_layers_are_one_read(vllm: str) -> None:
    verl = Verl("0.9.1", False)
    marlin_guard.needs_normalising(need("nvfp4_marlin_process_scales"))
    own = first_load(dense(False, 0))
    verl.apply()
    try:
        model = torch.nn.Module()
        model.model = torch.nn.ModuleList(dense(False, seed) for seed in range(5))
        for layer in model.model:
            first_load(layer)
        verl.prepare(model)
        for seed, layer in enumerate(model.model):
            dense(False, seed + 5, layer)
        assert host_reads(lambda: verl.process(model)) <= 5 * own + 1
    finally:
        undo(verl.steps)
        marlin_guard.report()
