"""Time and peak memory of ``verl-compat audit``, each run in a process of its own.

    python benchmarks/audit.py [--runs 5] [--matrix]

The first run fetches what the cache lacks and is not counted.  Bounds: one full set below 5 s and
500 MB; the matrix (5 verl on 9 Bridge, 5 verl on 14 vLLM releases) below 3 minutes.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import time

CODE = "import sys; from verl_compat.cli import main; sys.exit(main())"
FULL_SET = ["--verl", "0.9.1", "--bridge", "0.5.1", "--core", "0.18.2", "--vllm", "0.24.0"]
VLLM = "0.12.0,0.14.1,0.15.1,0.16.0,0.17.1,0.18.1,0.19.1,0.20.2,0.21.0,0.22.1,0.24.0,0.27.1,0.30.0,0.33.0"
MATRICES = {
    "5 verl x 9 Bridge": ["--matrix", "--verl", "all", "--bridge", "all"],
    "5 verl x 14 vLLM": ["--matrix", "--verl", "all", "--vllm", VLLM],
}


def seconds(options: list[str]) -> float:
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", CODE, "audit", "--json", *options], stdout=subprocess.DEVNULL)
    if done.returncode not in (0, 1):
        raise SystemExit(f"audit {' '.join(options)} failed with status {done.returncode}")
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--matrix", action="store_true")
    arguments = parser.parse_args()
    for name, options in {"verl on its upstreams": [*FULL_SET, "--direct"], "full set": FULL_SET}.items():
        seconds(options)
        times = [seconds(options) for _ in range(arguments.runs)]
        print(f"{name}: median {statistics.median(times):.2f} s, best {min(times):.2f} s of {arguments.runs}")
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(f"peak memory of a run: {peak:.0f} MB")
    if arguments.matrix:
        for name, options in MATRICES.items():
            seconds(options)
            print(f"{name}: {seconds(options):.1f} s")


if __name__ == "__main__":
    main()
