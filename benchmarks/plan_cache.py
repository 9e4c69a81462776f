"""What the export-plan cache saves and costs, on CPU ranks over gloo.

    python benchmarks/plan_cache.py exports --ranks 2 --layers 4 20 80 200
    python benchmarks/plan_cache.py fingerprint --parameters 1000 10000 100000

``exports``: one tiny Qwen3 over N pipeline ranks; in each round, in random order, Bridge alone
(fresh plan), the cache, and tasks passed by hand (as verl 0.9, ``conversion_tasks=``), the latter
two also without adapter merging, where passing by hand needs no object collective either.
Medians, and ratios within the same run.  ``fingerprint``: cost of the check before each reuse
against Bridge's planning of the same model in one process (PP=1: no collective), processor time.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
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
    if "RANK" in os.environ or options.what == "fingerprint":
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

    if options.what == "exports":
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
    from megatron.core import parallel_state as mpu

    mpu.initialize_model_parallel(pipeline_model_parallel_size=dist.get_world_size())
    if dist.get_rank() == 0:
        print(f"\nPP={dist.get_world_size()}, median ms of {options.rounds} rounds\n")
        print(
            "| layers | tensors | Bridge alone | by hand | cache | alone/cache | cache/by hand | the same, not merged |"
        )
        print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for layers in options.layers:
        row(layers, options.rounds)


def row(layers: int, rounds: int) -> None:
    import torch
    import torch.distributed as dist

    from support import tiny
    from support.plan import bridge_alone
    from verl_compat import plan_cache

    folder = [tempfile.mkdtemp(prefix="plan-bench-") if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(folder)
    if dist.get_rank() == 0:
        tiny.write_tiny_checkpoint(folder[0], num_hidden_layers=layers)
    dist.barrier()
    size = dist.get_world_size()
    bridge, provider = tiny.build_provider(folder[0], pipeline_model_parallel_size=size, pipeline_dtype=torch.float32)
    model = tiny.build_model(provider)
    tasks = bridge.get_conversion_tasks(model)
    count = [0]

    def run(alone: bool, **kwargs: Any) -> Callable[[], None]:
        def once() -> None:
            stream = bridge.export_hf_weights(model, show_progress=False, **kwargs)
            count[0] = sum(1 for _ in stream)

        def patched() -> None:
            with bridge_alone():
                once()

        return patched if alone else once

    cases = {
        "alone": run(True),
        "hand": run(True, conversion_tasks=tasks),
        "cache": run(False),
        "hand, not merged": run(True, conversion_tasks=tasks, merge_adapter_weights=False),
        "cache, not merged": run(False, merge_adapter_weights=False),
    }
    times: dict[str, list[float]] = {name: [] for name in cases}
    order = random.Random(layers)
    for turn in range(rounds + 2):
        names = list(cases)
        order.shuffle(names)  # the same on all ranks
        for name in names:
            elapsed = timed(cases[name])
            if turn >= 2:  # the first uses fill the caches of mappings
                times[name].append(elapsed)
    middle = {name: statistics.median(values) for name, values in times.items()}
    if dist.get_rank() == 0:
        print(
            f"| {layers} | {count[0]} | {middle['alone']:.0f} | {middle['hand']:.1f} | {middle['cache']:.1f} | "
            f"{middle['alone'] / middle['cache']:.1f} | {middle['cache'] / middle['hand']:.3f} | "
            f"{middle['cache, not merged'] / middle['hand, not merged']:.3f} |",
            flush=True,
        )
        stats = plan_cache.stats()
        assert stats.hits, stats
    plan_cache.clear()
    plan_cache.reset_stats()


def fingerprints(options: argparse.Namespace) -> None:
    """One table row per number of parameters."""
    from megatron.bridge import AutoBridge
    from transformers import Qwen3Config

    from support import tiny

    print("\n| parameters | modules | Bridge's planning, ms | check, ms | check/planning | check per parameter, us |")
    print("| --- | --- | --- | --- | --- | --- |")
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1}
    for wanted in options.parameters:
        config = Qwen3Config(
            vocab_size=32, head_dim=8, num_hidden_layers=max(1, (wanted - 3) // 8), tie_word_embeddings=False,
            architectures=["Qwen3ForCausalLM"], **sizes,
        )  # fmt: skip
        bridge = AutoBridge.from_hf_config(config)
        provider = tiny.configure_for_cpu(bridge.to_megatron_provider(load_weights=False), kv_channels=8)
        provider.finalize()
        model = tiny.build_model(provider)
        planning, cost = planning_and_check(bridge, model, config, options.rounds)
        count = sum(1 for _ in model[0].parameters())
        print(
            f"| {count} | {sum(1 for _ in model[0].modules())} | {planning:.0f} | {cost:.2f} | {cost / planning:.2%} | "
            f"{cost * 1000 / count:.2f} |",
            flush=True,
        )


def planning_and_check(bridge: Any, model: Any, config: Any, rounds: int) -> tuple[float, float]:
    """Milliseconds of one planning, and median of the check of its record."""
    from verl_compat.shims import plan_fingerprint

    pretrained = checkpoint_like(config, bridge._model_bridge.build_conversion_tasks(config, model))
    planning = cpu_ms(lambda: bridge._model_bridge.build_conversion_tasks(pretrained, model))
    record = plan_fingerprint.take(model, bridge.hf_pretrained, ())

    def check() -> None:
        assert plan_fingerprint.difference(record, model, bridge.hf_pretrained, ()) is None

    return planning, statistics.median(cpu_ms(check) for _ in range(rounds))


def checkpoint_like(config: Any, tasks: list[Any]) -> Any:
    """What planning reads of a checkpoint: its configuration and the list of its tensor names."""
    names = [task.mapping.hf_param for task in tasks]
    keys = [key for name in names for key in ([name] if isinstance(name, str) else name.values())]
    source = SimpleNamespace(get_all_keys=lambda: keys)
    return SimpleNamespace(config=config, state=SimpleNamespace(source=source))


if __name__ == "__main__":
    main()
