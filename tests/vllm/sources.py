"""Unpacked Python files of vLLM and verl releases, for reading and for executing parts of them.

``VERL_COMPAT_SOURCES`` names a folder with ``vllm-<version>/`` and ``verl-<version>/``; what is
not there is taken from pip (the wheel is downloaded, its Python files are kept, the wheel is
deleted).  Nothing of it is ever committed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path


def cache() -> Path:
    """Where unpacked releases are kept."""
    named = os.environ.get("VERL_COMPAT_SOURCES")
    folder = Path(named) if named else Path(tempfile.gettempdir()) / "verl-compat-sources"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def tree(dist: str, version: str) -> Path:
    """The folder that holds the release's package folder."""
    target = cache() / f"{dist}-{version}"
    if not (target / dist).is_dir():
        fetch(dist, version, target)
    return target


def fetch(dist: str, version: str, target: Path) -> None:
    """Download one wheel with pip and keep its Python and version files."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        for tag in ("2_28", "2_31", "2_35"):
            command += ["--platform", f"manylinux_{tag}_x86_64"]
        command += ["--platform", "manylinux1_x86_64", "--platform", "any"]
        subprocess.run([*command, "-d", folder, f"{dist}=={version}"], check=True, timeout=900)
        wheel = next(Path(folder).glob("*.whl"))
        unpacked = Path(folder) / "unpacked"
        with zipfile.ZipFile(wheel) as archive:
            names = [n for n in archive.namelist() if n.startswith(f"{dist}/") and n.endswith((".py", "/version"))]
            archive.extractall(unpacked, names)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(str(unpacked), target)
