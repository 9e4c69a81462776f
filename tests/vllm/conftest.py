"""Fixtures: parts of real vLLM releases, and verl's own modules beside them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

import harness
import partial
import sources

VLLM = ("0.12.0", "0.15.1", "0.17.1", "0.18.1", "0.19.1", "0.20.2", "0.22.1", "0.24.0", "0.29.0", "0.30.0", "0.33.0")
VERL = {"modelopt": ("0.8.0", "0.9.1"), "qat": ("0.7.1", "0.8.0", "0.9.1")}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "vllm" in metafunc.fixturenames:
        metafunc.parametrize("vllm", VLLM, indirect=True, scope="module")


@pytest.fixture(scope="module")
def vllm(request: pytest.FixtureRequest) -> Iterator[str]:
    """A part of one vLLM release on a pretended Hopper GPU; its version."""
    version: str = request.param
    partial.load(sources.tree("vllm", version), version)
    harness.cpu_kernels()
    yield version
    clean()


def clean() -> None:
    """No vLLM, no verl, no installed patches, no activation left."""
    from verl_compat.shims import marlin, marlin_host

    marlin_host.forget()
    marlin._warned.clear()
    partial.forget()
    for name in [name for name in sys.modules if name == "verl" or name.startswith("verl.")]:
        del sys.modules[name]


class Bare(ModuleType):
    """A package of verl of which only named modules are executed."""

    def __init__(self, name: str, folder: Path) -> None:
        super().__init__(name)
        self.__path__ = [str(folder)]
        self.__file__ = str(folder / "__init__.py")


def verl_module(version: str, name: str) -> Any:
    """One real module of a verl release; its packages' ``__init__`` files are not executed."""
    root = sources.tree("verl", version)
    for loaded in [n for n in sys.modules if n == "verl" or n.startswith("verl.")]:
        del sys.modules[loaded]
    package, parts = "verl", name.split(".")[1:-1]
    sys.modules["verl"] = Bare("verl", root / "verl")
    for part in parts:
        parent, package = package, f"{package}.{part}"
        module = Bare(package, root / package.replace(".", "/"))
        sys.modules[package] = module
        setattr(sys.modules[parent], part, module)
    device = ModuleType("verl.utils.device")
    vars(device).update(get_device_name=lambda: "cpu", get_torch_device=lambda: torch.cpu)
    sys.modules["verl.utils.device"] = device
    return importlib.import_module(name)
