"""Contract tests: one body per helper, against real Bridge wheels, with verl_compat active.

The same test must pass where Bridge has the helper itself (0.5 and newer) and where it comes from
verl_compat; ``assert_path`` checks which of the two it was.
"""

from __future__ import annotations

import os

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ.setdefault("OMP_NUM_THREADS", "1")

from types import ModuleType

import pytest

import verl_compat.auto  # noqa: F401  (no-op where the .pth has activated already)
from support import cpu_fixups, enable_stubs, init_single_process, shutdown, write_tiny_checkpoint
from support.versions import BRIDGE, NATIVE

enable_stubs()


def pytest_collection_modifyitems(items):
    if BRIDGE is None:
        for item in items:
            item.add_marker(pytest.mark.skip(reason="megatron-bridge is not installed"))


@pytest.fixture(scope="session", autouse=True)
def single_process():
    """Gloo with one rank, and the CPU fix-ups."""
    if BRIDGE is None:
        yield
        return
    init_single_process()
    cpu_fixups()
    yield
    shutdown()


@pytest.fixture(scope="session")
def dense_checkpoint(tmp_path_factory):
    return write_tiny_checkpoint(tmp_path_factory.mktemp("qwen3"), "qwen3")


@pytest.fixture(scope="session")
def moe_checkpoint(tmp_path_factory):
    return write_tiny_checkpoint(tmp_path_factory.mktemp("qwen3_moe"), "qwen3_moe")


@pytest.fixture
def assert_path():
    """Assert that an object is Bridge's own where Bridge has it, and verl_compat's where not."""

    def check(found: object) -> None:
        home = found.__module__ if not isinstance(found, ModuleType) else found.__name__
        expected = "megatron.bridge." if NATIVE else "verl_compat.shims."
        assert home.startswith(expected), f"{found!r} comes from {home}, expected {expected}* on Bridge {BRIDGE}"

    return check
