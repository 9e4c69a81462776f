"""Run by torchrun: exports of real models, cached and by Bridge alone, in every layout of this world size.

Usage: plan_worker.py FOLDER [--thorough].  Writes FOLDER/rank<N>.json: a list of [case, error or
null, seconds, processor seconds].  The first error ends a rank, and with it the world: after one,
ranks may be out of step.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import sys
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ["CUDA_VISIBLE_DEVICES"] = ""

from support import cpu_fixups, enable_stubs

enable_stubs()

import verl_compat.auto  # noqa: E402, F401  (as the .pth does in an installed environment)


def main() -> int:
    import torch.distributed as dist

    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--thorough", action="store_true")
    options = parser.parse_args()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo")
    import megatron.bridge  # noqa: F401

    cpu_fixups()
    logging.disable(logging.INFO)
    gc.collect()
    gc.freeze()  # the upstreams' two million objects need no look at each collection
    done: list[tuple[str, str | None, float, float]] = []
    failed = _run(world, options, done)
    if world == 4 and not failed:  # the same processes, as two worlds of two ranks with different work
        dist.destroy_process_group()
        half = rank // 2
        store = options.folder / f"world{half}"
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank % 2, world_size=2)
        failed = _run(2, options, done, share=(half, 2))
    (options.folder / f"rank{rank}.json").write_text(json.dumps(done))
    if failed:
        os._exit(1)  # peers may be waiting in a collective: no orderly end
    dist.destroy_process_group()
    return 0


def _run(
    world: int,
    options: argparse.Namespace,
    done: list[tuple[str, str | None, float, float]],
    share: tuple[int, int] = (0, 1),
) -> bool:
    from plan_cases import cases

    for name, case in cases(world, options.folder, thorough=options.thorough, share=share):
        started, cpu = time.monotonic(), time.process_time()
        error = None
        try:
            case()
        except Exception:
            error = traceback.format_exc()
        done.append((name, error, time.monotonic() - started, time.process_time() - cpu))
        if error is not None:
            return True
    return False


if __name__ == "__main__":
    sys.exit(main())
