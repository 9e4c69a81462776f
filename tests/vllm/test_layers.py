"""verl's own functions on a real vLLM's layers: first load, three reloads, bias, padding, experts, KV scales."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import harness
import pytest
import torch
from conftest import VERL, verl_module

from verl_compat import steps
from verl_compat.patches import commit, prepare, undo
from verl_compat.registry import load
from verl_compat.shims import marlin_guard, marlin_reload, marlin_select
from verl_compat.shims.marlin_resolve import need

N, K = 256, 128
EXPERTS, HIDDEN, INTERMEDIATE = 4, 128, 128
MODELOPT, QAT = "verl_ge_0_8_modelopt_nvfp4_on_marlin", "verl_ge_0_7_1_qat_nvfp4_on_marlin"


def series(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")[:2]))


class Model(torch.nn.Module):
    """What verl's functions are given: a model whose layers are below ``.model``."""

    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        self.model = torch.nn.Module()
        self.model.layer = layer


class Verl:
    """verl's four functions of one format, with our adapter applied to the real module."""

    def __init__(self, version: str, compressed: bool) -> None:
        name = "verl.utils.qat.vllm_patch" if compressed else "verl.utils.modelopt.vllm_modelopt_patch"
        self.module = verl_module(version, name)
        self.steps = commit(prepare(load(QAT if compressed else MODELOPT), self.module))
        names = (
            ("apply_qat_patches", "prepare_qat_for_load_weights", "manual_process_weights_after_loading")
            if compressed
            else (
                "apply_modelopt_nvfp4_patches",
                "prepare_modelopt_for_weight_reload",
                "modelopt_process_weights_after_loading",
            )
        )
        self.apply, self.prepare, self.process = (getattr(self.module, each) for each in names)


PAIRS = [(v, False) for v in VERL["modelopt"]] + [(v, True) for v in VERL["qat"]]
IDS = [f"verl-{v}-{'compressed-tensors' if c else 'modelopt'}" for v, c in PAIRS]


@pytest.fixture(params=PAIRS, ids=IDS)
def verl(request: pytest.FixtureRequest, vllm: str) -> Any:
    version, compressed = request.param
    found = Verl(version, compressed)
    found.compressed = compressed
    found.apply()
    yield found
    undo(found.steps)


def addresses(layer: torch.nn.Module) -> dict[str, int]:
    return {name: tensor.data_ptr() for name, tensor in marlin_reload.tensors(layer)}


def identities(layer: torch.nn.Module) -> dict[str, int]:
    return {name: id(tensor) for name, tensor in marlin_reload.tensors(layer)}


def load_dense(verl: Any, layer: Any, data: Any, first: bool) -> None:
    if not first:
        verl.prepare(Model(layer))
    harness.send_dense(layer, data, verl.compressed)
    if first:
        owner = layer.scheme if verl.compressed else layer.quant_method
        owner.process_weights_after_loading(layer)
    else:
        assert verl.process(Model(layer)) == 1


def tolerance(vllm: str, dtype: torch.dtype) -> float:
    return 2.0**-19 if series(vllm) >= (0, 19) else torch.finfo(dtype).eps


def assert_close(got: torch.Tensor, want: torch.Tensor, rounding: float, scales: torch.Tensor) -> None:
    lost = want.abs().max() * 2.0**-12  # block scales that S0E5M3 has no code for
    assert ((got - want).abs() <= rounding * want.abs() + lost).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.half], ids=["bf16", "fp16"])
def test_dense_layer_with_bias_loads_and_reloads_in_place(vllm: str, verl: Any, dtype: torch.dtype) -> None:
    build = harness.compressed_linear if verl.compressed else harness.modelopt_linear
    _, layer = build(N, K, dtype, True)
    before: Any = None
    for seed in range(4):
        data = harness.Checkpoint.random(N, K, seed=seed, bias=True)
        load_dense(verl, layer, data, first=seed == 0)
        real, bias = harness.dense_on_marlin(layer)
        if dtype == torch.bfloat16:
            assert_close(real, data.real(), tolerance(vllm, dtype), data.scales)
        else:  # no factor for half: scales below 2**-6 are lost on every release
            assert ((real - data.real()).abs() <= 2.0**-9 * data.real().abs() + 6 * 2.0**-6 * data.global_scale).all()
        assert bias is not None
        assert torch.equal(bias, data.bias.to(dtype))
        now = (addresses(layer), identities(layer))
        assert before is None or now == before
        before = now


def test_a_sync_without_input_scale_keeps_the_last_one(vllm: str, verl: Any) -> None:
    build = harness.compressed_linear if verl.compressed else harness.modelopt_linear
    _, layer = build(N, K, torch.bfloat16, False)
    load_dense(verl, layer, harness.Checkpoint.random(N, K), first=True)
    kept = {name: tensor.clone() for name, tensor in marlin_reload.tensors(layer) if "input" in name}
    verl.prepare(Model(layer))
    data = harness.Checkpoint.random(N, K, seed=1)
    harness.send_dense(layer, data, verl.compressed, with_input=False)
    verl.process(Model(layer))
    assert_close(harness.dense_on_marlin(layer)[0], data.real(), tolerance(vllm, torch.bfloat16), data.scales)
    for name, value in kept.items():
        assert torch.equal(getattr(layer, name), value)


def test_padding_where_vllm_pads(vllm: str, verl: Any) -> None:
    if series(vllm) < (0, 24):
        pytest.skip(f"vLLM {vllm} refuses sizes that are no multiple of Marlin's tiles")
    build = harness.compressed_linear if verl.compressed else harness.modelopt_linear
    _, layer = build(96, K, torch.bfloat16, True)
    for seed in range(2):
        data = harness.Checkpoint.random(96, K, seed=seed, bias=True)
        load_dense(verl, layer, data, first=seed == 0)
        real, bias = harness.dense_on_marlin(layer)
        assert_close(real, data.real(), tolerance(vllm, torch.bfloat16), data.scales)
        assert torch.equal(bias, data.bias)


def test_w4a4_scheme_reloads_input_scales_too(vllm: str, verl: Any) -> None:
    if not verl.compressed:
        pytest.skip("ModelOpt's one method is W4A4 already")
    _, layer = harness.compressed_linear(N, K, torch.bfloat16, False, w4a4=True)
    for seed in range(3):
        data = harness.Checkpoint.random(N, K, seed=seed)
        data.input_scale = torch.tensor([0.25 * (seed + 1)])
        load_dense(verl, layer, data, first=seed == 0)
        assert_close(harness.dense_on_marlin(layer)[0], data.real(), tolerance(vllm, torch.bfloat16), data.scales)
        if series(vllm) >= (0, 16):  # before, the weight-only scheme keeps the divisor
            assert float(layer.input_global_scale) == pytest.approx(float(data.input_scale))


def moe_data(seed: int, dead: bool = False) -> tuple[Any, Any]:
    w13 = harness.Checkpoint.random(2 * INTERMEDIATE, HIDDEN, EXPERTS, seed=seed)
    w2 = harness.Checkpoint.random(HIDDEN, INTERMEDIATE, EXPERTS, seed=seed + 100)
    for gemm in (w13, w2):
        gemm.scales[2] = (gemm.scales[2].float() * 2.0**-4).to(torch.float8_e4m3fn)  # another magnitude
        if dead:
            gemm.packed[1], gemm.scales[1], gemm.global_scale[1] = 0, 0.0, 2.0**-100
    return w13, w2


def test_moe_layer_loads_and_reloads_in_place(vllm: str, verl: Any) -> None:
    method, layer = harness.moe_layer(verl.compressed, EXPERTS, HIDDEN, INTERMEDIATE, torch.bfloat16)
    shared = layer.e_score_correction_bias
    before: Any = None
    for seed in range(4):
        w13, w2 = moe_data(seed, dead=seed == 3)
        if seed:
            verl.prepare(Model(layer))
        harness.send_moe(layer, w13, w2, verl.compressed)
        if seed:
            assert verl.process(Model(layer)) == 1
        else:
            method.process_weights_after_loading(layer)
        for gemm, data, n, k in (("w13", w13, 2 * INTERMEDIATE, HIDDEN), ("w2", w2, HIDDEN, INTERMEDIATE)):
            for expert, real in enumerate(harness.moe_on_marlin(layer, gemm, n, k)):
                want = data.real(expert)
                lost = float(data.scales.float().max()) * 2.0**-12 * 6 * float(data.global_scale[expert])
                assert ((real - want).abs() <= tolerance(vllm, torch.bfloat16) * want.abs() + lost).all()
        now = (addresses(layer), identities(layer))
        assert before is None or now == before
        before = now
    assert layer.e_score_correction_bias is shared
    kernels = [getattr(method, name) for name in ("moe_kernel", "kernel") if hasattr(method, name)]
    assert kernels or series(vllm) < (0, 14)


def test_all_zero_expert_is_zero_and_not_nan(vllm: str, verl: Any) -> None:
    method, layer = harness.moe_layer(verl.compressed, EXPERTS, HIDDEN, INTERMEDIATE, torch.bfloat16)
    w13, w2 = moe_data(0, dead=True)
    for gemm in (w13, w2):
        gemm.global_scale[1] = float("inf") if verl.compressed else 0.0  # divisor zero, multiplier zero
    harness.send_moe(layer, w13, w2, verl.compressed)
    method.process_weights_after_loading(layer)
    for gemm, n, k in (("w13", 2 * INTERMEDIATE, HIDDEN), ("w2", HIDDEN, INTERMEDIATE)):
        real = harness.moe_on_marlin(layer, gemm, n, k)
        assert all(torch.isfinite(expert).all() for expert in real)
        assert not real[1].any()


def test_native_path_is_bit_identical_with_the_package(vllm: str) -> None:
    """vLLM's own callers: before anything of ours is loaded, with adapters applied, and with patches installed."""

    def convert() -> list[dict[str, torch.Tensor]]:
        done = []
        for build in (harness.modelopt_linear, harness.compressed_linear):
            _, layer = build(N, K, torch.bfloat16, True)
            harness.send_dense(layer, harness.Checkpoint.random(N, K, bias=True), build is harness.compressed_linear)
            owner = layer.scheme if build is harness.compressed_linear else layer.quant_method
            owner.process_weights_after_loading(layer)
            done.append({name: tensor.clone() for name, tensor in marlin_reload.tensors(layer)})
        for compressed in (False, True):
            method, experts = harness.moe_layer(compressed, EXPERTS, HIDDEN, INTERMEDIATE, torch.bfloat16)
            harness.send_moe(experts, *moe_data(0), compressed)
            method.process_weights_after_loading(experts)
            done.append({name: tensor.clone() for name, tensor in marlin_reload.tensors(experts)})
        return done

    def functions() -> list[Any]:
        module = importlib.import_module(f"{harness.QUANT}.utils.marlin_utils_fp4")
        return [value for value in vars(module).values() if callable(value)]

    first, own = convert(), functions()
    for version, compressed in PAIRS:
        Verl(version, compressed)  # adapters applied, verl's apply not called: no QAT in this process
    assert functions() == own
    second = convert()
    asked = [Verl("0.9.1", compressed) for compressed in (False, True)]
    for found in asked:
        found.apply()
    assert functions() == own  # vLLM's functions are never replaced, only the methods that verl asks for
    third = convert()
    for found in asked:
        undo(found.steps)
    old = marlin_guard.needs_normalising(need("nvfp4_marlin_process_scales"))
    for before, with_package, with_patches in zip(first, second, third, strict=True):
        assert before.keys() == with_package.keys()
        assert all(same_bits(before[name], with_package[name]) for name in before)
        if not old:
            assert all(same_bits(before[name], with_patches[name]) for name in before)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(
        a.contiguous().view(-1).view(torch.uint8), b.contiguous().view(-1).view(torch.uint8)
    )


def test_a_failed_apply_leaves_vllm_untouched_and_can_be_repeated(vllm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for version, compressed in PAIRS:
        found = Verl(version, compressed)
        originals = _methods(compressed)
        with monkeypatch.context() as patch:
            patch.setattr(steps.SetSlot, "do", _fail_on_second(steps.SetSlot.do))
            with pytest.raises(RuntimeError, match="second"):
                found.apply()
        assert _methods(compressed) == originals
        found.apply()
        assert _methods(compressed) != originals
        found.apply()  # verl calls it in the server and in each worker
        undo(found.steps)
        assert _methods(compressed) == originals


def test_taking_an_adapter_back_takes_back_what_verl_asked_it_for(vllm: str) -> None:
    for version, compressed in PAIRS:
        originals = _methods(compressed)
        found = Verl(version, compressed)
        found.apply()
        assert _methods(compressed) != originals
        assert not undo(found.steps)
        assert _methods(compressed) == originals
        assert not (found.module._applied_patches if compressed else found.module._patched)


def _methods(compressed: bool) -> list[Any]:
    names = (
        ("CompressedTensorsW4A16Fp4", "CompressedTensorsW4A4Fp4", "CompressedTensorsW4A4Nvfp4MoEMethod")
        if compressed
        else ("ModelOptLinearMethod", "ModelOptNvFp4LinearMethod", "ModelOptNvFp4FusedMoE", "BaseKVCacheMethod")
    )
    from verl_compat.shims.marlin_resolve import find

    return [
        vars(cls).get(n) for name in names if (cls := find(name)) for n in ("__init__", "process_weights_after_loading")
    ]


def _fail_on_second(start: Callable[[Any], None]) -> Callable[[Any], None]:
    calls: list[Any] = []

    def failing(self: Any) -> None:
        calls.append(self)
        if len(calls) == 2:
            raise RuntimeError("second")
        start(self)

    return failing


def kv_layer() -> Any:
    layer = torch.nn.Module()
    layer.kv_cache_dtype, layer.calculate_kv_scales = "fp8_e4m3", False
    for name in ("_k_scale", "_v_scale", "_q_scale", "_prob_scale", "_k_scale_cpu", "_v_scale_cpu"):
        layer.register_buffer(name, torch.ones(()))
    return layer


def test_kv_scales_stay_loadable_and_vllm_processes_them(vllm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module(f"{harness.QUANT}.kv_cache")
    if hasattr(module, "is_quantized_kv_cache"):  # imported from a part of vLLM that is a stand-in here
        monkeypatch.setattr(module, "is_quantized_kv_cache", lambda dtype: dtype.startswith("fp8"))
    found = Verl("0.9.1", False)
    cls = need("BaseKVCacheMethod")
    plain, kept = kv_layer(), kv_layer()
    for layer in (plain, kept):
        cls.create_weights(object.__new__(cls), layer)
        layer.k_scale.data.fill_(0.5)
        layer.v_scale.data.fill_(0.25)
    own = object.__new__(cls)
    cls.process_weights_after_loading(own, plain)
    found.apply()
    cls.process_weights_after_loading(own, kept)
    buffers = dict(kept.named_buffers())
    assert all(torch.equal(value, dict(plain.named_buffers())[name]) for name, value in buffers.items())
    assert not hasattr(plain, "k_scale")
    kept.k_scale.data.fill_(0.125)
    address = kept._k_scale.data_ptr()
    kept.quant_method = type("KVCacheMethod", (cls,), {"apply": lambda self: None})(None)
    found.process(Model(kept))
    assert float(kept._k_scale) == 0.125
    assert kept._k_scale.data_ptr() == address
    undo(found.steps)


def test_marlin_is_really_selected_on_a_gpu_with_native_fp4(vllm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.platforms import current_platform

    modelopt = importlib.import_module(f"{harness.QUANT}.modelopt")
    found = Verl("0.9.1", False)
    monkeypatch.setattr(current_platform, "capability", harness.BLACKWELL)
    if hasattr(modelopt, "init_nvfp4_linear_kernel"):
        native = type("CutlassNvFp4LinearKernel", (), {"input_quant_key": lambda self: "fp4"})
        monkeypatch.setattr(modelopt, "init_nvfp4_linear_kernel", lambda *_, **__: native())
    if hasattr(modelopt, "select_nvfp4_moe_backend"):
        backend = need("NvFp4MoeBackend")
        monkeypatch.setattr(modelopt, "select_nvfp4_moe_backend", lambda *_, **__: (backend.VLLM_CUTLASS, object))
    method, _ = harness.modelopt_linear(N, K, torch.bfloat16, False)
    assert not marlin_select.is_marlin(method)
    found.apply()
    try:
        method, layer = harness.modelopt_linear(N, K, torch.bfloat16, False)
        assert marlin_select.is_marlin(method)
        assert not hasattr(layer, "_input_quant_key")
        assert not hasattr(layer, "input_quant_key")
        data = harness.Checkpoint.random(N, K)
        load_dense(found_with(found, False), layer, data, first=True)
        assert_close(harness.dense_on_marlin(layer)[0], data.real(), tolerance(vllm, torch.bfloat16), data.scales)
        moe, _ = harness.moe_layer(False, EXPERTS, HIDDEN, INTERMEDIATE, torch.bfloat16)
        assert marlin_select.is_marlin(moe)
        assert series(vllm) < (0, 14) or (moe.experts_cls is need("MarlinExperts") and not moe.use_global_sf)
    finally:
        undo(found.steps)


def found_with(verl: Any, compressed: bool) -> Any:
    verl.compressed = compressed
    return verl


def test_no_marlin_is_one_clear_error_and_nothing_is_patched(vllm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.platforms import current_platform

    found = Verl("0.9.1", False)
    before = _methods(False)
    monkeypatch.setattr(current_platform, "capability", 70)
    with pytest.raises(RuntimeError, match=r"Marlin.*compute capability"):
        found.apply()
    assert _methods(False) == before


def test_verls_helpers_are_the_ones_that_keep_the_factor(vllm: str) -> None:
    from verl_compat.shims import marlin

    modelopt, qat = Verl("0.9.1", False).module, Verl("0.9.1", True).module
    assert modelopt._split_marlin_scale is marlin.split_marlin_scale
    scales = torch.full((2, 64, 8), 2.0**-4).to(torch.float8_e4m3fn)
    for module in (modelopt, qat):
        done = module._marlin_process_scales_experts(scales, torch.bfloat16, 128, 64, 16, 2)
        assert torch.equal(marlin.decode_scales(done[1]), torch.full((8, 64), 2.0**-4))  # undivided global scale fits


def test_verls_own_function_converts_a_layer_without_a_method(vllm: str) -> None:
    module = Verl("0.9.1", False).module
    _, layer = harness.modelopt_linear(N, K, torch.bfloat16, True)
    data = harness.Checkpoint.random(N, K, bias=True)
    harness.send_dense(layer, data, False)
    module._modelopt_dense_process_weights(None, layer)
    real, bias = harness.dense_on_marlin(layer)
    assert_close(real, data.real(), tolerance(vllm, torch.bfloat16), data.scales)
    assert torch.equal(bias, data.bias)


def test_a_conversion_that_failed_half_way_wants_the_weights_again(vllm: str, verl: Any) -> None:
    build = harness.compressed_linear if verl.compressed else harness.modelopt_linear
    _, layer = build(N, K, torch.bfloat16, False)
    load_dense(verl, layer, harness.Checkpoint.random(N, K), first=True)
    before = addresses(layer)
    verl.prepare(Model(layer))
    data = harness.Checkpoint.random(N, K, seed=1)
    harness.send_dense(layer, data, verl.compressed)
    ops = importlib.import_module("vllm._custom_ops")
    repack = ops.gptq_marlin_repack
    ops.gptq_marlin_repack = _out_of_memory
    try:
        with pytest.raises(RuntimeError, match="out of memory"):
            verl.process(Model(layer))
    finally:
        ops.gptq_marlin_repack = repack
    refused = None
    try:
        verl.process(Model(layer))  # right where the failure consumed nothing
    except RuntimeError as error:
        refused = str(error)
    if refused is not None:
        assert "half converted" in refused
        load_dense(verl, layer, data, first=False)
    assert_close(harness.dense_on_marlin(layer)[0], data.real(), tolerance(vllm, torch.bfloat16), data.scales)
    assert addresses(layer) == before


def _out_of_memory(*_: Any, **__: Any) -> None:
    raise RuntimeError("out of memory")


def test_a_layer_in_kernel_format_is_not_converted_twice(vllm: str, verl: Any) -> None:
    build = harness.compressed_linear if verl.compressed else harness.modelopt_linear
    method, layer = build(N, K, torch.bfloat16, True)
    load_dense(verl, layer, harness.Checkpoint.random(N, K, bias=True), first=True)
    before = {name: tensor.clone() for name, tensor in marlin_reload.tensors(layer)}
    method.process_weights_after_loading(layer)
    assert all(same_bits(before[name], tensor) for name, tensor in marlin_reload.tensors(layer))
