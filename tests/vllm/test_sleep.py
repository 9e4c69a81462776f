"""What must hold between two loads: after ``sleep(level=2)``, after an undo, after a sync that lost something.

The kind: whatever we keep of a layer from one load to the next is on the host (the pool in which the model was
loaded may be discarded), and nothing is converted that nobody delivered.
"""

from __future__ import annotations

import gc
import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import harness
import pytest
import torch
from test_layers import (
    EXPERTS,
    HIDDEN,
    INTERMEDIATE,
    MODELOPT,
    QAT,
    K,
    Model,
    N,
    Verl,
    addresses,
    assert_close,
    kv_layer,
    load_dense,
    moe_data,
    same_bits,
    tolerance,
    verl,  # noqa: F401 - a fixture
)

from verl_compat.patches import CollisionError, commit, prepare, undo
from verl_compat.registry import load
from verl_compat.shims import marlin_reload
from verl_compat.shims.marlin_resolve import need

GARBAGE = 0x7F  # NaN in every E4M3 and bf16 number, large in fp32


class Pool:
    """vLLM's pool of weights: what is made while it is in use, but for copies on the host and named buffers."""

    def __init__(self) -> None:
        self.before: set[int] = set()
        self.host: set[int] = set()
        self.mine: list[torch.Tensor] = []

    @contextmanager
    def use(self) -> Iterator[None]:
        self.before = {id(tensor) for tensor in self._alive()}
        real = torch.Tensor.cpu

        def cpu(tensor: torch.Tensor) -> torch.Tensor:
            copy = real(tensor).clone()  # on a CPU it would be the tensor itself
            self.host.add(copy.untyped_storage().data_ptr())
            return copy

        torch.Tensor.cpu = cpu  # type: ignore[method-assign]
        try:
            yield
        finally:
            torch.Tensor.cpu = real  # type: ignore[method-assign]

    def discard(self, model: torch.nn.Module) -> None:
        """Level 2: everything but registered buffers has other content afterwards."""
        kept = {buffer.data_ptr() for buffer in model.buffers()} | self.host
        for tensor in self._alive():
            storage = tensor.untyped_storage()
            if id(tensor) not in self.before and storage.data_ptr() not in kept and storage.nbytes():
                torch.empty(0, dtype=torch.uint8).set_(storage, 0, (storage.nbytes(),), (1,)).fill_(GARBAGE)  # type: ignore[call-overload]

    @staticmethod
    def _alive() -> list[torch.Tensor]:
        gc.collect()
        return [thing for thing in gc.get_objects() if isinstance(thing, torch.Tensor) and thing.device.type == "cpu"]


def state_of(layer: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in marlin_reload.tensors(layer) if name != "e_score_correction_bias"}


@pytest.mark.parametrize("with_input", [True, False], ids=["all", "no-input-scale"])
def test_a_dense_layer_survives_sleep_level_2(vllm: str, verl: Any, with_input: bool) -> None:  # noqa: F811
    build = harness.compressed_linear if verl.compressed else harness.modelopt_linear
    first, second = (harness.Checkpoint.random(N, K, seed=seed, bias=True) for seed in (0, 1))
    pool = Pool()
    with pool.use():
        _, layer = build(N, K, torch.bfloat16, True)
        load_dense(verl, layer, first, first=True)
    where = addresses(layer)
    pool.discard(Model(layer))
    verl.prepare(Model(layer))
    harness.send_dense(layer, second, verl.compressed, with_input=with_input)
    assert verl.process(Model(layer)) == 1
    _, fresh = build(N, K, torch.bfloat16, True)
    second.input_scale = second.input_scale if with_input else first.input_scale
    load_dense(verl, fresh, second, first=True)
    assert all(same_bits(tensor, state_of(layer)[name]) for name, tensor in state_of(fresh).items())
    assert addresses(layer) == where


def test_experts_survive_sleep_level_2(vllm: str, verl: Any) -> None:  # noqa: F811
    pool = Pool()
    with pool.use():
        method, layer = harness.moe_layer(verl.compressed, EXPERTS, HIDDEN, INTERMEDIATE, torch.bfloat16)
        harness.send_moe(layer, *moe_data(0), verl.compressed)
        method.process_weights_after_loading(layer)
    pool.discard(Model(layer))
    verl.prepare(Model(layer))
    harness.send_moe(layer, *moe_data(1), verl.compressed)
    assert verl.process(Model(layer)) == 1
    method, fresh = harness.moe_layer(verl.compressed, EXPERTS, HIDDEN, INTERMEDIATE, torch.bfloat16)
    harness.send_moe(fresh, *moe_data(1), verl.compressed)
    method.process_weights_after_loading(fresh)
    assert all(same_bits(tensor, state_of(layer)[name]) for name, tensor in state_of(fresh).items())


@pytest.mark.parametrize("scales", [(-1.0, -1.0), (0.5, 0.25)], ids=["none", "given"])
def test_kv_scales_survive_sleep_level_2(
    vllm: str, scales: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module(f"{harness.QUANT}.kv_cache")
    if hasattr(module, "is_quantized_kv_cache"):  # imported from a part of vLLM that is a stand-in here
        monkeypatch.setattr(module, "is_quantized_kv_cache", lambda dtype: dtype.startswith("fp8"))
    found = Verl("0.9.1", False)
    found.apply()
    cls = need("BaseKVCacheMethod")
    pool, own = Pool(), object.__new__(cls)
    with pool.use():
        layer = kv_layer()
        cls.create_weights(own, layer)
        layer.k_scale.data.fill_(scales[0])
        layer.v_scale.data.fill_(scales[1])
        cls.process_weights_after_loading(own, layer)
        layer.quant_method = type("KVCacheMethod", (cls,), {"apply": lambda self: None})(None)
    used = {name: float(buffer) for name, buffer in layer.named_buffers()}
    pool.discard(Model(layer))
    assert float(layer.k_scale) != scales[0]
    found.prepare(Model(layer))
    assert found.process(Model(layer)) == 0  # nothing that a sync delivered is new
    assert (float(layer.k_scale), float(layer.v_scale)) == scales
    assert {name: float(buffer) for name, buffer in layer.named_buffers()} == used
    undo(found.steps)


# --- what a sync does not deliver --------------------------------------------


def test_a_tensor_that_a_sync_does_not_deliver_is_an_error_that_names_it(vllm: str, verl: Any) -> None:  # noqa: F811
    build = harness.compressed_linear if verl.compressed else harness.modelopt_linear
    names = ("weight_packed" if verl.compressed else "weight", "weight_scale")
    for lost in names:
        _, layer = build(N, K, torch.bfloat16, False)
        load_dense(verl, layer, harness.Checkpoint.random(N, K), first=True)
        live = {name: (tensor, tensor.clone()) for name, tensor in marlin_reload.ReloadState.of(layer).live.items()}
        verl.prepare(Model(layer))
        real = harness.send
        harness.send = lambda at, name, value, lost=lost, real=real: None if name == lost else real(at, name, value)
        try:
            harness.send_dense(layer, harness.Checkpoint.random(N, K, seed=1), verl.compressed)
        finally:
            harness.send = real
        with pytest.raises(RuntimeError, match=rf"did not deliver model\.layer\.{lost}\."):
            verl.process(Model(layer))
        assert all(same_bits(tensor, copy) for tensor, copy in live.values())
        data = harness.Checkpoint.random(N, K, seed=2)
        load_dense(verl, layer, data, first=False)  # a whole sync mends it
        assert_close(harness.dense_on_marlin(layer)[0], data.real(), tolerance(vllm, torch.bfloat16), data.scales)


def test_a_sync_that_brings_nothing_leaves_the_weights_as_they_are(vllm: str, verl: Any) -> None:  # noqa: F811
    """verl prepares for a LoRA adapter's sync, too, which sends no base weight."""
    build = harness.compressed_linear if verl.compressed else harness.modelopt_linear
    _, layer = build(N, K, torch.bfloat16, True)
    load_dense(verl, layer, harness.Checkpoint.random(N, K, bias=True), first=True)
    before = {name: (id(tensor), tensor.clone()) for name, tensor in marlin_reload.tensors(layer)}
    verl.prepare(Model(layer))
    verl.process(Model(layer))
    now = dict(marlin_reload.tensors(layer))
    assert now.keys() == before.keys()
    assert all(id(now[name]) == old and same_bits(now[name], copy) for name, (old, copy) in before.items())


def test_a_shard_or_an_expert_that_is_missing_is_named() -> None:
    from types import SimpleNamespace

    from verl_compat.shims.marlin_delivery import Delivered, recorded

    class Linear:
        logical_widths = (64, 32, 32)

        def load(self, param: Any, loaded_weight: Any, loaded_shard_id: Any = None) -> None:
            return None

    weight = torch.zeros(128, 8)
    seen = Delivered()
    loader = recorded(Linear().load, seen)
    loader(weight, weight[:64], "q")
    loader(weight, weight[:32], loaded_shard_id="k")
    assert list(seen.missing(Linear(), "weight_scale", (128, 8))) == ["weight_scale (2 of 3 shards)"]
    loader(weight, weight[:32], "v")
    assert not list(seen.missing(Linear(), "weight_scale", (128, 8)))
    whole = Delivered()
    recorded(Linear().load, whole)(weight, weight)
    assert not list(whole.missing(Linear(), "weight_scale", (128, 8)))

    def load_expert(
        param: Any, loaded_weight: Any, weight_name: str, shard_id: str, expert_id: int, return_success: bool = False
    ) -> bool:
        return expert_id < 2  # the others live on another rank

    layer = SimpleNamespace(moe_config=SimpleNamespace(is_act_and_mul=True))
    experts, seen = torch.zeros(2, 8, 8), Delivered()
    loader = recorded(load_expert, seen)
    for expert, shard in ((0, "w1"), (0, "w3"), (1, "w1"), (2, "w3")):
        loader(experts, experts[0], "name", shard_id=shard, expert_id=expert, return_success=True)
    assert list(seen.missing(layer, "w13_weight", (2, 8, 8))) == ["w13_weight (w3 of 1 of 2 experts)"]
    loader(experts, experts[0], "name", "w3", 1)
    assert not list(seen.missing(layer, "w13_weight", (2, 8, 8)))


# --- late activation, and undo under a running rollout -----------------------

OWN = {"0.20.2": False, "0.15.1": True}
"""Releases on which verl's own reload works, and the format."""


def _own(vllm: str) -> bool:
    if vllm not in OWN:
        pytest.skip(f"verl's own reload does not work on vLLM {vllm}")
    return OWN[vllm]


def test_nothing_is_applied_where_verls_own_patches_already_ran(vllm: str) -> None:
    compressed = _own(vllm)
    found = Verl("0.9.1", compressed)
    undo(found.steps)
    names = ("ModelOptNvFp4LinearMethod", "ModelOptNvFp4FusedMoE", "BaseKVCacheMethod")
    slots = [(need(name), slot) for name in names for slot in ("__init__", "process_weights_after_loading")]
    before = [(cls, slot, vars(cls)[slot]) for cls, slot in slots if slot in vars(cls)]
    done = found.module.apply_qat_patches() if compressed else found.module.apply_modelopt_nvfp4_patches()
    try:
        with pytest.raises(CollisionError, match="already ran in this process"):
            commit(prepare(load(QAT if compressed else MODELOPT), found.module))
    finally:
        for patch in done or ():
            patch.stop()
        for cls, slot, own in before:
            setattr(cls, slot, own)


def test_undoing_waits_for_a_reload_in_progress(vllm: str, verl: Any) -> None:  # noqa: F811
    build = harness.compressed_linear if verl.compressed else harness.modelopt_linear
    _, layer = build(N, K, torch.bfloat16, False)
    load_dense(verl, layer, harness.Checkpoint.random(N, K), first=True)
    later = verl.steps[-1]
    assert later.refusal() is None
    verl.prepare(Model(layer))
    assert "reload is in progress" in later.refusal()
    harness.send_dense(layer, harness.Checkpoint.random(N, K, seed=1), verl.compressed)
    verl.process(Model(layer))
    assert later.refusal() is None


@pytest.mark.parametrize("experts", [False, True], ids=["dense", "experts"])
def test_after_an_undo_verls_own_reload_works_and_ours_again_after_that(vllm: str, experts: bool) -> None:
    compressed = _own(vllm)
    found = Verl("0.9.1", compressed)
    found.compressed = compressed
    found.apply()
    if experts:
        method, layer = harness.moe_layer(compressed, EXPERTS, HIDDEN, INTERMEDIATE, torch.bfloat16)
    else:
        method, layer = (harness.compressed_linear if compressed else harness.modelopt_linear)(
            N, K, torch.bfloat16, False
        )
        layer.input_size_per_partition, layer.output_size_per_partition = K, N
    data: Any = None

    def send(seed: int) -> None:
        nonlocal data
        data = moe_data(seed) if experts else harness.Checkpoint.random(N, K, seed=seed)
        if experts:
            harness.send_moe(layer, *data, compressed)
        else:
            harness.send_dense(layer, data, compressed)

    def right() -> None:
        if experts:
            pairs = [
                (real, gemm_data.real(expert))
                for gemm, gemm_data, n, k in (
                    ("w13", data[0], 2 * INTERMEDIATE, HIDDEN),
                    ("w2", data[1], HIDDEN, INTERMEDIATE),
                )
                for expert, real in enumerate(harness.moe_on_marlin(layer, gemm, n, k))
            ]
        else:
            pairs = [(harness.dense_on_marlin(layer)[0], data.real())]
        for real, want in pairs:
            assert ((real - want).abs() <= 2.0**-7 * want.abs() + want.abs().max() * 2.0**-9).all()

    send(0)
    method.process_weights_after_loading(layer)
    kernel = {name: live.data_ptr() for name, live in marlin_reload.ReloadState.of(layer).live.items()}
    kernel = {name: at for name, at in kernel.items() if name.startswith(("w", "w13", "w2")) and "input" not in name}
    right()
    assert not undo(found.steps)
    own = found.module
    verls = (
        (own.prepare_qat_for_load_weights, own.manual_process_weights_after_loading)
        if compressed
        else (own.prepare_modelopt_for_weight_reload, own.modelopt_process_weights_after_loading)
    )
    verls[0](Model(layer))
    send(1)
    verls[1](Model(layer))
    right()
    found.steps = commit(
        prepare(
            load("verl_ge_0_7_1_qat_nvfp4_on_marlin" if compressed else "verl_ge_0_8_modelopt_nvfp4_on_marlin"), own
        )
    )
    ours = (
        (own.prepare_qat_for_load_weights, own.manual_process_weights_after_loading)
        if compressed
        else (own.prepare_modelopt_for_weight_reload, own.modelopt_process_weights_after_loading)
    )
    ours[0](Model(layer))
    send(2)
    ours[1](Model(layer))
    right()
    undo(found.steps)
    now = addresses(layer)
    assert {name: now[name] for name in kernel if name in now} == {n: at for n, at in kernel.items() if n in now}
