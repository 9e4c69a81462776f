"""Real megatron-core wheels (installed without dependencies, beside torch and NumPy) on a CPU.

The same tests run on every core release: where core has the name itself, nothing may be patched.
"""

from __future__ import annotations

import os

os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ.setdefault("OMP_NUM_THREADS", "1")
# core 0.15 compiles an allocator on import where it finds a CUDA toolkit
os.environ["CUDA_HOME"] = "/nonexistent"
os.environ["TORCH_CUDA_ARCH_LIST"] = "8.0"

from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.version import Version

import verl_compat.auto  # noqa: F401  (no-op where the .pth has activated already)
from support.stubs import stubs  # noqa: F401


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    try:
        metadata.version("megatron-core")
    except metadata.PackageNotFoundError:
        here = Path(__file__).parent
        for item in items:
            if here in item.path.parents:
                item.add_marker(pytest.mark.skip(reason="megatron-core is not installed"))


@pytest.fixture(scope="session")
def core() -> Version:
    """The base version of the installed megatron-core."""
    return Version(Version(metadata.version("megatron-core")).base_version)


@pytest.fixture
def gloo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """torch.distributed with one rank on gloo, and the CUDA calls that core makes without asking."""
    import torch

    monkeypatch.setattr(torch.cuda, "current_device", lambda: torch.device("cpu"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()
