"""Processes of every kind, with the real verl and Bridge of this environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.version import Version

pytest.importorskip("verl", reason="needs an environment with verl and megatron-bridge (tox: bridge-0.4.2, verl-*)")

VERL = Version(metadata.version("verl"))
SITE = Path(metadata.distribution("verl").locate_file(""))  # type: ignore[arg-type]

# what a process says about itself: which adapters are in force, and how the value head got here
PROBE = """
import json, sys
from verl_compat import status
import verl.models.mcore.bridge as bridge
import megatron.bridge.training.utils.train_utils as train_utils
now = status()
print(json.dumps({
    "active": now.active,
    "outcome": now.outcome("bridge_lt_0_5_value_head"),
    "home": train_utils.make_value_model.__module__,
}))
"""
EXPECTED = {"active": True, "outcome": "applied", "home": "verl_compat.shims.value_head"}


def environment(**changes: str | None) -> dict[str, str]:
    """The environment for a child: without our switches, with ``changes`` (None removes)."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("VERL_")}
    for name, value in changes.items():
        env.pop(name, None)
        if value is not None:
            env[name] = value
    return env


def run(
    *args: str, env: dict[str, str] | None = None, python: str = sys.executable, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run a Python with a time-out."""
    done = subprocess.run(
        [python, "-W", "ignore", *args], env=env or environment(), capture_output=True, text=True, timeout=300
    )
    if check:
        assert done.returncode == 0, done.stderr[-4000:]
    return done


def answer(done: subprocess.CompletedProcess[str]) -> dict[str, object]:
    """The JSON line that a probe printed last."""
    line = [line for line in done.stdout.splitlines() if line.startswith("{")][-1]
    return dict(json.loads(line))


@pytest.fixture(scope="session")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with every package of this environment except verl-compat."""
    folder = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=120)
    (site,) = folder.glob("lib/python*/site-packages")
    for entry in SITE.iterdir():
        if not entry.name.startswith(("verl_compat", "__pycache__")):
            (site / entry.name).symlink_to(entry)
    python = folder / "bin" / "python"
    done = subprocess.run([python, "-c", "import verl_compat"], capture_output=True, text=True, timeout=60)
    assert "No module named 'verl_compat'" in done.stderr
    return python


@pytest.fixture(scope="session")
def target_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What ``pip install -t`` leaves: the package and its dist-info in a folder that is no site directory."""
    folder = tmp_path_factory.mktemp("target")
    for entry in SITE.glob("verl_compat*"):
        (folder / entry.name).symlink_to(entry)
    return folder
