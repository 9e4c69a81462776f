"""NVFP4 on Marlin on a real GPU: vLLM's kernels, vLLM's conversion, our reload path.

    python tests/gpu/marlin_h200.py --vllm 0.24.0 --root FOLDER [--out table.md]

FOLDER holds ``vllm/`` with the Python files and the kernel libraries of one release
(``tests/gpu/pack.py`` makes it from a wheel).  The vllm package is not imported: its
NVFP4 files are executed unchanged, the rest are stand-ins (``tests/vllm/partial.py``).
One process per release.  Prints one markdown row per case:

* error of the output against a bf16 matrix product with the dequantised checkpoint weight,
  for vLLM's own first load and for ours, after each of three reloads with new weights;
* whether any tensor address changed; an all-zero expert; a CUDA graph replayed after reload;
* how often the host waits for the GPU (CUDA's synchronisation warnings) in vLLM's own first load,
  in ours and in a reload, which also reads the flags of all layers once;
* time of one reload relative to vLLM's own first load of the same layer, medians, paired.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import statistics
import sys
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).resolve().parent
REPO = HERE.parents[1]
sys.path[:0] = [str(HERE.parent / "vllm")]


def package() -> None:
    """``verl_compat.shims`` from the checkout, whether or not the distribution is installed."""
    try:
        importlib.import_module("verl_compat.shims")
    except ImportError:
        for name, folder in (("verl_compat", REPO / "compat"), ("verl_compat.shims", REPO / "shims")):
            module = types.ModuleType(name)
            module.__path__ = [str(folder)]
            sys.modules[name] = module


package()
import harness  # noqa: E402
import partial  # noqa: E402

from verl_compat.later import Later  # noqa: E402
from verl_compat.registry import load  # noqa: E402
from verl_compat.shims import marlin_guard, marlin_install, marlin_reload  # noqa: E402
from verl_compat.shims.marlin_resolve import need  # noqa: E402

DEVICE = torch.device("cuda")


def start(root: Path, version: str) -> None:
    """The kernels and the part of vLLM that uses them."""
    import triton

    for library in sorted((root / "vllm").glob("_*C*.so")):
        torch.ops.load_library(str(library))
        print(f"loaded {library.name}", flush=True)
    units = torch.cuda.get_device_properties(0).multi_processor_count
    major, minor = torch.cuda.get_device_capability()
    finder = partial.load(root, version, capability=major * 10 + minor, compute_units=lambda *_: units)
    finder.given["vllm.triton_utils"] = {"HAS_TRITON": True, "triton": triton, "tl": triton.language}
    finder.given["vllm.utils.torch_utils"] = {"direct_register_custom_op": register_operator}
    finder.given["vllm.model_executor.layers.fused_moe.utils"] = {"_resize_cache": resize_cache}
    importlib.import_module(f"{harness.QUANT}.modelopt")


_library = torch.library.Library("vllm", "FRAGMENT")


def register_operator(op_name: str, op_func: Callable[..., Any], mutates_args: Any = (), **_: Any) -> None:
    """An operator of vLLM's own namespace, for CUDA (0.33 calls its matrix product through one)."""
    _library.define(op_name + torch.library.infer_schema(op_func, mutates_args=list(mutates_args or ())))
    _library.impl(op_name, op_func, "CUDA")


def resize_cache(x: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """A view of the beginning of a scratch buffer."""
    count = 1
    for size in shape:
        count *= size
    return x.flatten()[:count].view(*shape)


def to_gpu(module: torch.nn.Module) -> torch.nn.Module:
    """Parameters onto the GPU, classes and loaders kept."""
    for parameter in module.parameters(recurse=False):
        parameter.data = parameter.data.to(DEVICE)
    return module


def rank_relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    """Relative error in the Frobenius norm."""
    return float((got.double() - want.double()).norm() / want.double().norm().clamp(min=1e-30))


def dense_input(k: int) -> torch.Tensor:
    return torch.randn(64, k, device=DEVICE, dtype=torch.bfloat16)


def dense_reference(x: torch.Tensor, data: harness.Checkpoint) -> torch.Tensor:
    """x W^T + b in bf16 with the dequantised weight."""
    out = x @ data.real().to(DEVICE, torch.bfloat16).T
    return out if data.bias is None else out + data.bias.to(DEVICE)


def dense_forward(method: Any, layer: Any, x: torch.Tensor) -> torch.Tensor:
    run = getattr(method, "apply", None) or method.apply_weights
    return run(layer, x, getattr(layer, "bias", None))


class Dense:
    """One dense layer of one format."""

    def __init__(self, compressed: bool, n: int, k: int, bias: bool) -> None:
        self.compressed, self.n, self.k, self.bias = compressed, n, k, bias
        self.title = f"dense {n}x{k}, {'compressed-tensors' if compressed else 'ModelOpt'}" + (", bias" if bias else "")

    def make(self) -> tuple[Any, Any]:
        build = harness.compressed_linear if self.compressed else harness.modelopt_linear
        method, layer = build(self.n, self.k, torch.bfloat16, self.bias)
        return method, to_gpu(layer)

    def data(self, seed: int) -> Any:
        return harness.Checkpoint.random(self.n, self.k, seed=seed, bias=self.bias)

    def send(self, layer: Any, data: Any) -> None:
        harness.send_dense(layer, data, self.compressed)

    def inputs(self) -> Any:
        return dense_input(self.k)

    def forward(self, method: Any, layer: Any, x: Any) -> torch.Tensor:
        return dense_forward(method, layer, x)

    def reference(self, x: Any, data: Any) -> torch.Tensor:
        return dense_reference(x, data)


class Moe:
    """One MoE layer of one format; expert 1 is all-zero when ``dead``."""

    def __init__(self, compressed: bool, experts: int, hidden: int, intermediate: int, dead: bool) -> None:
        self.compressed, self.shape, self.dead = compressed, (experts, hidden, intermediate), dead
        self.title = f"MoE {experts} x ({hidden}, {intermediate}), {'compressed-tensors' if compressed else 'ModelOpt'}"
        self.title += ", one all-zero expert" if dead else ""

    def make(self) -> tuple[Any, Any]:
        method, layer = harness.moe_layer(self.compressed, *self.shape, torch.bfloat16)
        return method, to_gpu(layer)

    def data(self, seed: int) -> Any:
        experts, hidden, intermediate = self.shape
        pair = (
            harness.Checkpoint.random(2 * intermediate, hidden, experts, seed=seed),
            harness.Checkpoint.random(hidden, intermediate, experts, seed=seed + 1000),
        )
        if self.dead:
            for gemm in pair:
                gemm.packed[1] = 0
                gemm.scales[1] = 0
                gemm.global_scale[1] = 2.0**-100
        return pair

    def send(self, layer: Any, data: Any) -> None:
        harness.send_moe(layer, *data, self.compressed)

    def inputs(self) -> Any:
        experts, hidden, _ = self.shape
        x = torch.randn(96, hidden, device=DEVICE, dtype=torch.bfloat16) / 8
        weights, ids = torch.rand(96, experts, device=DEVICE).topk(2, dim=-1)
        return x, weights.float(), ids.int()

    def forward(self, method: Any, layer: Any, x: Any) -> torch.Tensor:
        from verl_compat.shims.marlin_resolve import find

        hidden, weights, ids = x
        experts_module = inspect.getmodule(find("MarlinExperts"))
        scalar_types = importlib.import_module("vllm.scalar_type").scalar_types
        call = {
            "hidden_states": hidden,
            "w1": layer.w13_weight,
            "w2": layer.w2_weight,
            "bias1": None,
            "bias2": None,
            "w1_scale": layer.w13_weight_scale,
            "w2_scale": layer.w2_weight_scale,
            "topk_weights": weights,
            "topk_ids": ids,
            "quant_type_id": scalar_types.float4_e2m1f.id,
            "global_num_experts": self.shape[0],
            "global_scale1": layer.w13_weight_scale_2,
            "global_scale2": layer.w2_weight_scale_2,
            "workspace": getattr(layer, "workspace", None),
        }
        return experts_module.fused_marlin_moe(**call)

    def reference(self, x: Any, data: Any) -> torch.Tensor:
        hidden, weights, ids = x
        w13, w2 = data
        out = torch.zeros_like(hidden)
        for expert in range(self.shape[0]):
            rows, slot = (ids == expert).nonzero(as_tuple=True)
            if not rows.numel():
                continue
            up = hidden[rows] @ w13.real(expert).to(DEVICE, torch.bfloat16).T
            gate, value = up.chunk(2, dim=-1)
            inner = torch.nn.functional.silu(gate.float()).to(torch.bfloat16) * value
            part = inner @ w2.real(expert).to(DEVICE, torch.bfloat16).T
            out.index_add_(0, rows, (part * weights[rows, slot].unsqueeze(1)).to(out.dtype))
        return out


def convert(method: Any, layer: Any) -> None:
    method.process_weights_after_loading(layer)


def addresses(layer: Any) -> dict[str, int]:
    return {name: tensor.data_ptr() for name, tensor in marlin_reload.tensors(layer)}


def waits(action: Callable[[], Any]) -> int:
    """How often the host waited for the GPU."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            action()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(warning.message) for warning in seen)


def native(case: Any) -> tuple[float, int]:
    """vLLM without us, first load only (the classes are not wrapped yet): error, host waits."""
    method, layer = case.make()
    data, x = case.data(0), case.inputs()
    case.send(layer, data)
    count = waits(lambda: convert(method, layer))
    return rank_relative_error(case.forward(method, layer, x), case.reference(x, data)), count


def our_waits(case: Any) -> tuple[int, int]:
    """Host waits of our first load, and of a reload with the flags read at its end."""
    method, layer = case.make()
    case.send(layer, case.data(0))
    first = waits(lambda: convert(method, layer))
    marlin_install.prepare_model(layer, DEVICE)
    case.send(layer, case.data(1))

    def again() -> None:
        convert(method, layer)
        marlin_guard.report()

    return first, waits(again)


def ours(case: Any) -> dict[str, Any]:
    """First load and three reloads through us, with a CUDA graph captured after the first."""
    method, layer = case.make()
    x = case.inputs()
    data = case.data(0)
    case.send(layer, data)
    convert(method, layer)
    errors = [rank_relative_error(case.forward(method, layer, x), case.reference(x, data))]
    before = addresses(layer)
    graph, captured = capture(case, method, layer, x)
    moved, graph_error, finite = False, 0.0, True
    for seed in (1, 2, 3):
        data = case.data(seed)
        marlin_install.prepare_model(layer, DEVICE)
        case.send(layer, data)
        convert(method, layer)
        out, want = case.forward(method, layer, x), case.reference(x, data)
        errors.append(rank_relative_error(out, want))
        moved |= addresses(layer) != before
        finite &= bool(torch.isfinite(out).all())
        if graph is not None:
            graph.replay()
            torch.cuda.synchronize()
            graph_error = max(graph_error, rank_relative_error(captured, want))
    return {"errors": errors, "moved": moved, "graph": graph_error if graph is not None else None, "finite": finite}


def capture(case: Any, method: Any, layer: Any, x: Any) -> tuple[Any, Any]:
    """A CUDA graph of the forward pass, or (None, None) where it cannot be captured."""
    try:
        case.forward(method, layer, x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = case.forward(method, layer, x)
    except RuntimeError as error:
        print(f"no CUDA graph for {case.title}: {error}", flush=True)
        torch.cuda.synchronize()
        return None, None
    return graph, out


def timed(action: Any) -> float:
    torch.cuda.synchronize()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    action()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end))


def reload_ratio(case: Any, rounds: int = 15) -> tuple[float, float]:
    """Median of (our reload / vLLM's own first load), and the latter's median in ms, paired in one run."""
    data = case.data(5)
    method, layer = case.make()
    case.send(layer, data)
    convert(method, layer)
    ratios, firsts = [], []
    for _ in range(rounds):
        fresh_method, fresh = case.make()
        case.send(fresh, data)
        original = marlin_install.original_of(fresh_method)
        first = timed(lambda m=fresh_method, f=fresh, o=original: o(m, f))
        marlin_install.prepare_model(layer, DEVICE)
        case.send(layer, data)
        again = timed(lambda: convert(method, layer))
        ratios.append(again / first)
        firsts.append(first)
    return statistics.median(ratios[2:]), statistics.median(firsts[2:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vllm", required=True)
    parser.add_argument("--root", required=True, type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.manual_seed(0)
    start(options.root, options.vllm)
    cases: list[Any] = [
        Dense(compressed, n, k, bias)
        for compressed in (False, True)
        for n, k, bias in ((4096, 4096, False), (3072, 2048, True))
    ]
    cases += [Moe(compressed, 16, 2048, 768, dead) for compressed in (False, True) for dead in (False, True)]
    natives = [native(case) for case in cases]
    marlin_guard.needs_normalising(need("nvfp4_marlin_process_scales"))  # once a process, on the CPU
    Later(load("verl_ge_0_8_modelopt_nvfp4_on_marlin")).apply(marlin_install.modelopt_plan())
    Later(load("verl_ge_0_7_1_qat_nvfp4_on_marlin")).apply(marlin_install.compressed_tensors_plan())
    head = [
        "| vLLM | case | vLLM's own error | ours, first load | ours, 3 reloads (max) | graph replay | finite "
        "| addresses | host waits: vLLM, ours first, reload | reload / vLLM's load |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    rows, good = [], True
    for case, (own_error, own_waits) in zip(cases, natives, strict=True):
        found = ours(case)
        first_waits, again_waits = our_waits(case)
        ratio, first = reload_ratio(case)
        later = max(found["errors"][1:])
        good &= found["finite"] and not found["moved"] and later < 1.5 * own_error + 1e-3
        good &= max(first_waits, again_waits) <= own_waits + 1
        graph = "not captured" if found["graph"] is None else f"{found['graph']:.2e}"
        rows.append(
            f"| {options.vllm} | {case.title} | {own_error:.2e} | {found['errors'][0]:.2e} | {later:.2e} | {graph} "
            f"| {'yes' if found['finite'] else 'NO'} | {'CHANGED' if found['moved'] else 'unchanged'} "
            f"| {own_waits}, {first_waits}, {again_waits} | {ratio:.2f} (of {first:.2f} ms) |"
        )
        print(rows[-1], flush=True)
    table = "\n".join([*head, *rows]) + "\n"
    print(f"\n{torch.cuda.get_device_name()}, torch {torch.__version__}\n\n{table}", flush=True)
    if options.out:
        options.out.write_text(table)
    raise SystemExit(0 if good else 1)


if __name__ == "__main__":
    main()
