"""What verl-compat costs a process that never imports a watched name.

Paired runs of a bare interpreter: without any ``.pth``, with one that does nothing, with ours, and with the
ones that setuptools and coverage ship, each in an environment that differs in nothing else.  Prints medians
and the modules that each adds.  Run by ``tox run -e bench``.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path

CASES = {
    "nothing": (),
    "idle line": (),
    "verl-compat": ("verl-compat",),
    "setuptools": ("setuptools",),
    "coverage": ("coverage",),
}


def make_environment(folder: Path, dists: tuple[str, ...]) -> Path:
    """A venv whose site-packages holds the files of ``dists`` and nothing else."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for dist in dists:
        home = Path(str(metadata.distribution(dist).locate_file("")))
        for name in {file.parts[0] for file in metadata.files(dist) or () if file.parts[0] != ".."}:
            source = home / name
            copy = shutil.copytree if source.is_dir() else shutil.copy
            copy(source, site / name)  # type: ignore[operator]
    if folder.name == "idle line":
        (site / "idle.pth").write_text("import sys\n")
    # as pip does on installing; elsewhere the first start would write the files
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(site)], check=True)
    return folder / "bin" / "python"


def once(python: Path) -> float:
    """Milliseconds for one start."""
    begin = time.perf_counter()
    subprocess.run([python, "-c", "pass"], check=True)
    return (time.perf_counter() - begin) * 1000


def modules(python: Path) -> set[str]:
    """What a start loads."""
    code = "import sys, json; print(json.dumps(sorted(sys.modules)))"
    return set(json.loads(subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        pythons = {name: make_environment(Path(folder) / name, dists) for name, dists in CASES.items()}
        for python in pythons.values():
            once(python)  # files in the cache
        times: dict[str, list[float]] = {name: [] for name in CASES}
        for _ in range(rounds):
            for name in random.sample(sorted(CASES), len(CASES)):
                times[name].append(once(pythons[name]))
        bare = modules(pythons["nothing"])
        print("| environment | start, median ms | added (median of pairs), ms | modules added |\n|---|---|---|---|")
        for name in CASES:
            added = statistics.median(a - b for a, b in zip(times[name], times["nothing"], strict=True))
            new = sorted(modules(pythons[name]) - bare)
            print(
                f"| {name} | {statistics.median(times[name]):.2f} | {added:+.2f} | {len(new)}: {', '.join(new)[:90]} |"
            )


if __name__ == "__main__":
    main()
