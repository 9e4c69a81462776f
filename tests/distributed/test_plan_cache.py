"""bridge_plan_cache with real ranks: torchrun, gloo, every layout, and ranks that see different things.

One torchrun of four processes; after the four-rank layouts they split into two worlds of two ranks,
which share out the two-rank cases.  ``VERL_COMPAT_THOROUGH=1`` runs every case, in a world of two
processes and again in one of four, with more exports, each rank changed in turn and longer random
sequences of events.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.versions import BRIDGE

HERE = Path(__file__).parent
THOROUGH = bool(os.environ.get("VERL_COMPAT_THOROUGH"))
TIME_OUT_S = 3600 if THOROUGH else 900
WORLDS = (2, 4) if THOROUGH else (4,)


@pytest.fixture(scope="module", params=WORLDS)
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Errors by case, over all ranks; empty lists for cases that passed everywhere."""
    if BRIDGE is None:
        pytest.skip("megatron-bridge is not installed")
    folder = tmp_path_factory.mktemp(f"world{request.param}")
    command = [
        sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone",
        f"--nproc-per-node={request.param}", str(HERE / "plan_worker.py"), str(folder),
        *(["--thorough"] if THOROUGH else []),
    ]  # fmt: skip
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), *sys.path]))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": path}
    log = folder / "log"
    with log.open("w") as out:
        process = subprocess.Popen(
            command, env=environment, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code = process.wait(timeout=TIME_OUT_S)
        except subprocess.TimeoutExpired:
            code = f"no end after {TIME_OUT_S} s: a hang"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    merged: dict[str, list[str]] = {}
    for file in sorted(folder.glob("rank*.json")):
        for case, error, *_ in json.loads(file.read_text()):
            merged.setdefault(case, []).extend([f"{file.stem}: {error}"] if error else [])
    if code != 0 and not any(merged.values()):
        pytest.fail(f"torchrun ended with {code}; cases so far {list(merged)}; log:\n{log.read_text()[-4000:]}")
    return merged


def test_every_case_passes_on_every_rank(results: dict[str, list[str]]) -> None:
    failed = {case: errors for case, errors in results.items() if errors}
    assert not failed, "\n\n".join(f"{case}:\n" + "\n".join(errors) for case, errors in failed.items())


def test_no_case_is_missing(results: dict[str, list[str]], request: pytest.FixtureRequest) -> None:
    sys.path.insert(0, str(HERE))
    try:
        from plan_cases import cases
    finally:
        sys.path.remove(str(HERE))
    world = request.node.callspec.params["results"]
    sizes = {world, 2}
    expected = {name for size in sizes for name, _ in cases(size, HERE, thorough=THOROUGH, share=(0, 1))}
    assert set(results) == expected
    assert len(expected) > 15
