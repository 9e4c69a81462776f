"""What the export-plan cache saves and costs, on CPU ranks over gloo.

    python benchmarks/plan_cache.py exports --ranks 2 --layers 4 20 80 200
    python benchmarks/plan_cache.py fingerprint --ranks 1 --parameters 1000 10000 100000
    python benchmarks/plan_cache.py fingerprint --ranks 2 --parameters 1000 10000 100000

``exports``: one tiny Qwen3 over N pipeline ranks; in each round, in random order, Bridge alone
(fresh plan), the cache, and tasks passed by hand (as verl 0.9, ``conversion_tasks=``), the latter
two also without adapter merging, where passing by hand needs no object collective either.
Medians, and the median of the ratios within each round with the middle half of them.

``fingerprint``: cost of the check before each reuse (processor time, slowest rank) against what
it saves: an export with a fresh plan less the same export with tasks passed by hand.
"""

from __future__ import annotations

import argparse
import atexit
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
sys.path.insert(0, str(HERE.parents[1] / "tests"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("exports", "fingerprint"))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--layers", type=int, nargs="+", default=[4, 20, 80])
    parser.add_argument("--parameters", type=int, nargs="+", default=[1000, 10000])
    parser.add_argument("--rounds", type=int, default=11)
    options = parser.parse_args()
    os.environ.update(CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1")
    if "RANK" in os.environ or (options.what == "fingerprint" and options.ranks == 1):
        work(options)
        return
    command = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={options.ranks}", str(HERE), *sys.argv[1:]]
    sys.exit(subprocess.run(command).returncode)


def work(options: argparse.Namespace) -> None:
    from support import cpu_fixups, enable_stubs, init_single_process

    enable_stubs()
    import torch.distributed as dist

    import verl_compat.auto  # noqa: F401

    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    else:
        init_single_process()
    import megatron.bridge  # noqa: F401

    cpu_fixups()
    exports(options) if options.what == "exports" else fingerprints(options)
    dist.destroy_process_group()


def timed(action: Callable[[], Any]) -> float:
    """Milliseconds, from a common start of all ranks."""
    import torch.distributed as dist

    dist.barrier()
    begin = time.perf_counter()
    action()
    return (time.perf_counter() - begin) * 1000


def cpu_ms(action: Callable[[], Any]) -> float:
    """Milliseconds of processor time: nothing here waits for a peer, and other load does not count."""
    begin = time.process_time()
    action()
    return (time.process_time() - begin) * 1000


def exports(options: argparse.Namespace) -> None:
    """One table row per number of layers."""
    import torch.distributed as dist

    pipeline()
    if dist.get_rank() == 0:
        print(f"\nPP={dist.get_world_size()}, median ms of {options.rounds} rounds\n")
        print(
            "| layers | tensors | Bridge alone | by hand | cache | alone/cache | cache/by hand | the same, not merged |"
        )
        print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for layers in options.layers:
        row(layers, options.rounds)


def pipeline() -> int:
    """Make all ranks one pipeline, if model parallelism is not initialised; how many ranks."""
    import torch.distributed as dist
    from megatron.core import parallel_state as mpu

    if not mpu.model_parallel_is_initialized():
        mpu.initialize_model_parallel(pipeline_model_parallel_size=dist.get_world_size())
    return dist.get_world_size()


def prepare(layers: int, **sizes: int) -> tuple[Any, Any]:
    """A bridge on a written checkpoint of tiny Qwen3, and the model over all ranks as one pipeline."""
    import torch
    import torch.distributed as dist

    from support import tiny

    folder = [tempfile.mkdtemp(prefix="plan-bench-") if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(folder)
    if dist.get_rank() == 0:
        atexit.register(shutil.rmtree, folder[0])  # planning reads its list of tensors
        tiny.write_tiny_checkpoint(folder[0], num_hidden_layers=layers, **sizes)
    dist.barrier()
    ranks = pipeline()
    parallel = {"pipeline_model_parallel_size": ranks, "pipeline_dtype": torch.float32} if ranks > 1 else {}
    bridge, provider = tiny.build_provider(folder[0], **parallel)
    return bridge, tiny.build_model(provider)


def export(bridge: Any, model: Any, **kwargs: Any) -> int:
    """Run one export to its end; number of tensors."""
    return sum(1 for _ in bridge.export_hf_weights(model, show_progress=False, **kwargs))


def export_alone(bridge: Any, model: Any, **kwargs: Any) -> int:
    """The same without the cache."""
    from support.plan import bridge_alone

    with bridge_alone():
        return export(bridge, model, **kwargs)


def row(layers: int, rounds: int) -> None:
    import torch.distributed as dist

    from verl_compat import plan_cache

    bridge, model = prepare(layers)
    tasks = bridge.get_conversion_tasks(model)
    count = export(bridge, model)
    cases: dict[str, Callable[[], int]] = {
        "alone": lambda: export_alone(bridge, model),
        "hand": lambda: export_alone(bridge, model, conversion_tasks=tasks),
        "cache": lambda: export(bridge, model),
        "hand, not merged": lambda: export_alone(bridge, model, conversion_tasks=tasks, merge_adapter_weights=False),
        "cache, not merged": lambda: export(bridge, model, merge_adapter_weights=False),
    }
    times: dict[str, list[float]] = {name: [] for name in cases}
    order = random.Random(layers)
    for turn in range(rounds + 1):
        names = list(cases)
        order.shuffle(names)  # the same on all ranks
        for name in names:
            elapsed = timed(cases[name])
            if turn:  # the first uses fill the caches of mappings
                times[name].append(elapsed)
    if dist.get_rank() == 0:
        middle = {name: statistics.median(values) for name, values in times.items()}
        print(
            f"| {layers} | {count} | {middle['alone']:.0f} | {middle['hand']:.1f} | {middle['cache']:.1f} | "
            f"{ratios(times['alone'], times['cache'])} | {ratios(times['cache'], times['hand'])} | "
            f"{ratios(times['cache, not merged'], times['hand, not merged'])} |",
            flush=True,
        )
        stats = plan_cache.stats()
        assert stats.hits, stats
    plan_cache.clear()
    plan_cache.reset_stats()


def ratios(above: list[float], below: list[float]) -> str:
    """Median of the ratios of the rounds, and in brackets their quartiles."""
    low, middle, high = statistics.quantiles([a / b for a, b in zip(above, below, strict=True)], n=4)
    return f"{middle:.3f} ({low:.3f}-{high:.3f})" if middle < 2 else f"{middle:.1f} ({low:.1f}-{high:.1f})"


def fingerprints(options: argparse.Namespace) -> None:
    """One table row per number of parameters."""
    import torch.distributed as dist

    ranks = pipeline()
    if dist.get_rank() == 0:
        print(
            "\n| ranks | parameters | modules of a rank | planning, ms | check, ms | check/planning | us per module |"
        )
        print("| --- | --- | --- | --- | --- | --- | --- |")
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1}
    for wanted in options.parameters:
        layers = max(1, (wanted - 3) // 8 // ranks) * ranks
        bridge, model = prepare(layers, vocab_size=32, head_dim=8, **sizes)
        planning, cost, count = planning_and_check(bridge, model, options.rounds)
        modules = sum(1 for _ in model[0].modules())
        if dist.get_rank() == 0:
            print(
                f"| {ranks} | {count} | {modules} | {planning:.0f} | {cost:.2f} | {cost / planning:.2%} | "
                f"{cost * 1000 / modules:.2f} |",
                flush=True,
            )


def planning_and_check(bridge: Any, model: Any, rounds: int) -> tuple[float, float, int]:
    """Median milliseconds of what a plan costs and of the check, on the slowest rank; number of tasks."""
    import torch
    import torch.distributed as dist

    from verl_compat.shims import plan_fingerprint

    tasks = bridge.get_conversion_tasks(model)
    by_hand = {"conversion_tasks": tasks, "merge_adapter_weights": False}
    export_alone(bridge, model, **by_hand)  # fills the caches of mappings
    planning = [
        timed(lambda: export_alone(bridge, model)) - timed(lambda: export_alone(bridge, model, **by_hand))
        for _ in range(rounds)
    ]
    record = plan_fingerprint.take(model, bridge.hf_pretrained, ())

    def check() -> None:
        assert plan_fingerprint.difference(record, model, bridge.hf_pretrained, ()) is None

    costs = [cpu_ms(check) for _ in range(rounds + 10)]
    slowest = torch.tensor([statistics.median(planning), statistics.median(costs)])
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return float(slowest[0]), float(slowest[1]), len(tasks)


if __name__ == "__main__":
    main()
