"""What activation and all adapters cost while verl and Bridge are imported.

Paired runs, with and without the package (``VERL_COMPAT=off``), of one process that imports verl's
Megatron modules; and, in the same process, the time spent inside our hooks, which is the more exact
number: two imports of ten seconds differ by more than what is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import verl_compat

PROBE = """
import json, sys, time
spent = 0.0
def timed(function):
    def wrapper(*args):
        global spent, depth
        depth += 1
        begin = time.perf_counter()
        try:
            return function(*args)
        finally:
            depth -= 1
            if depth == 0:
                spent += time.perf_counter() - begin
    return wrapper
depth = 0
from verl_compat import _boot
_boot.hook = timed(_boot.hook)
begin = time.perf_counter()
import verl.models.mcore.bridge
import verl.utils.megatron_utils
import megatron.bridge.training.utils.train_utils, megatron.bridge.peft.utils
total = time.perf_counter() - begin
print(json.dumps({"total": total, "hooks": spent}))
"""


def once(mode: str) -> dict[str, float]:
    """Seconds for the imports, and of those the seconds inside our hooks."""
    env = {**os.environ, "VERL_COMPAT": mode}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROBE], check=True, capture_output=True, text=True, env=env
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    # as pip does on installing; without it each process would compile the package anew
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(Path(verl_compat.__file__).parent)], check=True)
    once("auto")  # files in the cache
    pairs = [(once("off"), once("auto")) for _ in range(rounds)]
    off = statistics.median(a["total"] for a, _ in pairs)
    auto = statistics.median(b["total"] for _, b in pairs)
    hooks = statistics.median(b["hooks"] for _, b in pairs)
    share = statistics.median(b["hooks"] / b["total"] for _, b in pairs)
    print(f"| imports, median s | off {off:.2f} | active {auto:.2f} |\n|---|---|---|")
    print(f"| inside our hooks | {hooks * 1000:.1f} ms | {share:.2%} of the imports |")


if __name__ == "__main__":
    main()
