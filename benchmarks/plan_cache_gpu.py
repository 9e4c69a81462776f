"""The export-plan cache on two GPUs: Qwen3-1.7B (random weights, bf16), PP=2 over NCCL.

    torchrun --standalone --nproc-per-node=2 benchmarks/plan_cache_gpu.py

Needs no network, no checkpoint and no installed verl-compat: the package is mapped from this source
tree.  Prints a Markdown table: per export Bridge alone, tasks passed by hand (as verl 0.9) and the
cache, with object collectives, and whether all streams are bitwise equal.  ``--device cpu --layers 4
--hidden 64`` is a rehearsal over gloo.

What it needs besides torch is listed in docs/plan-cache.md ("The GPU run").
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))


def map_package() -> None:
    """Make ``verl_compat`` importable from the source tree, where it is not installed."""
    if importlib.util.find_spec("verl_compat") is not None:
        return
    spec = importlib.util.spec_from_file_location(
        "verl_compat", ROOT / "compat" / "__init__.py", submodule_search_locations=[str(ROOT / "compat")]
    )
    assert spec is not None
    assert spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules["verl_compat"] = package
    spec.loader.exec_module(package)
    for name in ("adapters", "shims"):
        child = types.ModuleType(f"verl_compat.{name}")
        child.__path__ = [str(ROOT / name)]
        sys.modules[child.__name__] = child
        setattr(package, name, child)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--layers", type=int, default=28)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--exports", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=7, help="further timed exports of each kind, for medians")
    options = parser.parse_args()
    if options.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    map_package()
    from support import enable_stubs

    enable_stubs()
    import torch
    import torch.distributed as dist

    if options.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if options.device == "cuda" else "gloo")
    from verl_compat.shims import plan_cache

    bridge, model = build(options)
    report(options, bridge, plan_cache.wrap(bridge), model)
    dist.destroy_process_group()


def build(options: argparse.Namespace) -> tuple[Any, Any]:
    """AutoBridge from a configuration, and this rank's half of the model."""
    import torch
    import torch.distributed as dist
    from megatron.bridge import AutoBridge
    from megatron.core import parallel_state, tensor_parallel
    from transformers import Qwen3Config

    from support import cpu_fixups, tiny

    cuda = options.device == "cuda"
    if not cuda:
        cpu_fixups()
    parallel_state.initialize_model_parallel(pipeline_model_parallel_size=dist.get_world_size())
    if cuda:
        tensor_parallel.model_parallel_cuda_manual_seed(1234)
    config = Qwen3Config(
        vocab_size=151936 if cuda else 512, hidden_size=options.hidden, intermediate_size=3 * options.hidden,
        num_hidden_layers=options.layers, num_attention_heads=options.hidden // 128 or 1,
        num_key_value_heads=max(1, options.hidden // 256), head_dim=128, tie_word_embeddings=False,
        architectures=["Qwen3ForCausalLM"],
    )  # fmt: skip
    bridge = AutoBridge.from_hf_config(config)
    provider = tiny.configure_for_cpu(  # also without Transformer Engine and Apex on a GPU
        bridge.to_megatron_provider(load_weights=False), pipeline_model_parallel_size=dist.get_world_size(),
        kv_channels=128, use_cpu_initialization=not cuda,
    )  # fmt: skip
    dtype = torch.bfloat16
    provider.params_dtype = provider.autocast_dtype = provider.pipeline_dtype = dtype
    provider.bf16 = True
    provider.finalize()
    model = provider.provide_distributed_model(
        wrap_with_ddp=False, use_cpu_initialization=not cuda, data_parallel_random_init=False, bf16=True
    )
    return bridge, model


class Calls:
    """Counts the object collectives of an action."""

    def __init__(self) -> None:
        self.count = 0

    def during(self, action: Callable[[], Any]) -> tuple[Any, int]:
        """Result of ``action``, and how many it made."""
        import torch.distributed as dist

        names = ("all_gather_object", "broadcast_object_list")
        saved = {name: getattr(dist, name) for name in names}
        self.count = 0
        for name, original in saved.items():
            setattr(dist, name, self._counting(original))
        try:
            return action(), self.count
        finally:
            for name, original in saved.items():
                setattr(dist, name, original)

    def _counting(self, original: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.count += 1
            return original(*args, **kwargs)

        return call


def report(options: argparse.Namespace, bridge: Any, cached: Any, model: Any) -> None:
    """Time, count and compare; rank 0 prints."""
    import torch
    import torch.distributed as dist

    cuda = options.device == "cuda"

    def settle() -> None:
        if cuda:
            torch.cuda.synchronize()
        dist.barrier()

    def run(source: Any, **kwargs: Any) -> tuple[float, int]:
        settle()
        begin = time.perf_counter()
        _, calls = counter.during(
            lambda: sum(1 for _ in source.export_hf_weights(model, show_progress=False, **kwargs))
        )
        settle()
        return (time.perf_counter() - begin) * 1000, calls

    counter = Calls()
    say = print if dist.get_rank() == 0 else (lambda *args, **kwargs: None)
    total = torch.tensor(sum(p.numel() for p in model[0].parameters()), device=model[0].parameters().__next__().device)
    dist.all_reduce(total)
    name = torch.cuda.get_device_name() if cuda else "CPU"
    say(f"\n{dist.get_world_size()} x {name}, {dist.get_backend()}, {int(total) / 1e9:.2f} B parameters, bf16,")
    say(f"PP={dist.get_world_size()}, torch {torch.__version__}\n")
    run(bridge)  # communicators and allocator warm up
    tasks = bridge._model_bridge.build_conversion_tasks(bridge.hf_pretrained, model)
    run(bridge, conversion_tasks=tasks)
    say("| export | Bridge alone, ms (object collectives) | by hand, ms | cache, ms | bitwise equal |")
    say("| --- | --- | --- | --- | --- |")
    for number in range(1, options.exports + 1):
        with torch.no_grad():
            for parameter in model[0].parameters():
                parameter.mul_(1.01)
        alone, hand, ours = run(bridge), run(bridge, conversion_tasks=tasks), run(cached)
        equal = same(bridge, cached, model)
        cells = " | ".join(f"{elapsed:.0f} ({calls})" for elapsed, calls in (alone, hand, ours))
        say(f"| {number} | {cells} | {equal} |")
    medians = []
    for source, kwargs in ((bridge, {}), (bridge, {"conversion_tasks": tasks}), (cached, {})):
        medians.append([run(source, **kwargs)[0] for _ in range(options.rounds)])
    alone, hand, ours = (statistics.median(values) for values in medians)
    say(f"| median of {options.rounds} | {alone:.0f} | {hand:.0f} | {ours:.0f} | |")
    say(f"\nalone/cache {alone / ours:.2f}, cache/by hand {ours / hand:.3f}")
    from verl_compat.shims import plan_cache

    say(plan_cache.stats())


def same(bridge: Any, cached: Any, model: Any) -> bool:
    """Both streams side by side: names, dtypes and bits."""
    import itertools

    import torch

    end = object()
    for left, right in itertools.zip_longest(
        cached.export_hf_weights(model, show_progress=False),
        bridge.export_hf_weights(model, show_progress=False),
        fillvalue=end,
    ):
        if end in (left, right) or left[0] != right[0] or left[1].dtype != right[1].dtype:
            return False
        if not torch.equal(left[1].contiguous().view(torch.uint8), right[1].contiguous().view(torch.uint8)):
            return False
    return True


if __name__ == "__main__":
    main()
