"""Whole interpreters in which something else meddles: restored modules, threads, closed streams, odd names."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TARGET = "verl.utils.checkpoint.megatron_checkpoint_manager"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A verl clone of version 0.9.1 with one watched module, and a vLLM without one that is watched."""
    files = {
        "verl/__init__.py": "",
        "verl/version/version": "0.9.1",
        "verl/utils/__init__.py": "",
        "verl/utils/checkpoint/__init__.py": "",
        "verl/utils/checkpoint/megatron_checkpoint_manager.py": "import json\n",
        "vllm/__init__.py": "",
        "vllm/_version.py": "__version__ = '0.24.0'\n",
        "vllm/lora/__init__.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def run(program: str, *path: Path, timeout: float = 60, **environment: str) -> str:
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path)), **environment}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_restored_modules_do_not_make_two_finders(site: Path) -> None:
    """What coverage with ``source=`` and ``patch.dict(sys.modules)`` do."""
    program = f"""
import sys
from unittest.mock import patch
with patch.dict(sys.modules):
    import verl
import verl_compat.auto
import {TARGET}
import verl_compat
print(verl_compat.status().active, sum("Finder" == type(f).__name__ for f in sys.meta_path))
verl_compat.revert()
print(sum("verl_compat" in type(f).__module__ for f in sys.meta_path))
"""
    assert run(program, site).split() == ["True", "1", "0"]


def test_two_importing_threads_do_not_wait_for_each_other(site: Path) -> None:
    program = """
import threading, vllm.lora
start = threading.Barrier(2)
def watched():
    start.wait()
    try:
        import vllm.lora.models
    except ImportError:
        pass
def other():
    start.wait()
    import packaging.specifiers, json, logging, difflib, importlib.metadata, socket, tempfile
threads = [threading.Thread(target=each, daemon=True) for each in (watched, other)]
[thread.start() for thread in threads]
[thread.join(30) for thread in threads]
print([thread.is_alive() for thread in threads])
"""
    assert run(program, site) == "[False, False]"


def test_the_finder_takes_the_bells_place(site: Path) -> None:
    """A list that got shorter would make another thread that walks over it skip a finder."""
    program = """
import sys
before = list(sys.meta_path)
bell = next(at for at, found in enumerate(before) if type(found).__name__ == "VerlCompatDoorbell")
import verl
after = list(sys.meta_path)
print(len(before) == len(after), type(after[bell]).__name__, before[bell + 1:] == after[bell + 1:])
"""
    assert run(program, site) == "True Finder True"


def test_restored_modules_while_something_is_deferred(site: Path) -> None:
    program = """
import sys, verl, verl_compat
from verl_compat import _boot
_boot.finder().deferred.add("verl.utils.checkpoint.megatron_checkpoint_manager")
for name in [name for name in sys.modules if name.startswith("verl_compat")]:
    del sys.modules[name]
import colorsys
print("imported")
"""
    assert run(program, site) == "imported"


def test_a_clone_that_the_script_puts_on_the_path_is_found(site: Path, tmp_path: Path) -> None:
    program = f"""
import sys
sys.path.insert(0, {str(site)!r})
import {TARGET}, verl_compat
print([what.raw for what in verl_compat.status().versions if what.dist == "verl"])
"""
    assert run(program) == "['0.9.1']"
    assert run(program, VERL_COMPAT_REPORT_DIR=str(tmp_path / "reports")) == "['0.9.1']"


@pytest.mark.parametrize("variables", [{"VERL_COMPAT_DISABLE": "nonsense"}, {"VERL_COMPAT": "of"}])
def test_a_warning_with_stderr_closed_stops_no_import(site: Path, variables: dict[str, str]) -> None:
    program = f"import sys; sys.stderr.close(); import {TARGET}; print('imported')"
    assert run(program, site, **variables) == "imported"


def test_an_empty_report_folder_asks_for_no_report() -> None:
    program = "import sys; print('verl_compat' in sys.modules)"
    assert run(program, VERL_COMPAT_REPORT_DIR="") == "False"


@pytest.mark.skipif(sys.platform != "linux", reason="process names are read from /proc")
def test_a_process_with_an_unreadable_name_is_no_trouble() -> None:
    program = r"""
import ctypes, os, time, verl_compat
if os.fork() == 0:
    ctypes.CDLL(None).prctl(15, b"worker-\xe4\xbd", 0, 0, 0)
    time.sleep(5)
    os._exit(0)
time.sleep(0.5)
print(len(verl_compat.status().pythons))
"""
    assert run(program) == "1"


def test_an_interrupted_import_can_be_repeated(site: Path) -> None:
    program = f"""
import verl_compat.engine as engine
decide = engine.decide
def interrupted(*args):
    raise KeyboardInterrupt
engine.decide = interrupted
try:
    import {TARGET}
except KeyboardInterrupt:
    engine.decide = decide
import {TARGET}, verl_compat
print(verl_compat.status().outcome("verl_transformer_config_json"))
"""
    assert run(program, site) in ("applied", "untested", "failed", "not-needed")


@pytest.mark.parametrize(
    ("folder", "content"),
    [
        ("verl-0.2.0.dist-info", b"Name: verl\nVersion: 0.2.0\nSummary: \xe9t\xe9\n"),
        ("verl-0.2.0.dist-info", None),
        ("verl.egg-info", b"Name: verl\nVersion: 0.2.0\n"),
    ],
    ids=["not UTF-8", "no METADATA", "left over from an old build"],
)
def test_metadata_that_cannot_be_used_leaves_the_clones_own_version(
    site: Path, folder: str, content: bytes | None
) -> None:
    (site / folder).mkdir()
    if content is not None:
        (site / folder / ("PKG-INFO" if folder.endswith("egg-info") else "METADATA")).write_bytes(content)
    program = f"""
import warnings; warnings.simplefilter("error")
import {TARGET}, verl_compat
print(*[what.raw for what in verl_compat.status().versions if what.dist == "verl"])
"""
    assert run(program, site) == "0.9.1"
