"""Run a worker of this folder under torchrun, with a hard time-out and the whole process group killed at it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def torchrun(worker: str, *args: object, ranks: int, timeout: float, **env: str) -> str:
    """Run a worker; its output, or an AssertionError that shows it."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    path = os.pathsep.join([str(ROOT / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [
        sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}",
        f"--master-port={port}", str(HERE / worker), *map(str, args),
    ]  # fmt: skip
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        env={**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", **env},
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        raise AssertionError(f"{worker} did not end within {timeout} s:\n{output[-6000:]}") from None
    assert process.returncode == 0, output[-6000:]
    return output
