"""Workers run under torchrun; helpers of this folder are importable by name."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


def pytest_collection_modifyitems(items):
    from support.versions import BRIDGE

    if BRIDGE is None:
        for item in items:
            item.add_marker(pytest.mark.skip(reason="megatron-bridge is not installed"))


@pytest.fixture(scope="session")
def config_worker(tmp_path_factory):
    """Results of one torchrun of config_worker.py: a function from part to one dict per rank."""
    from launch import torchrun

    folder = tmp_path_factory.mktemp("config")
    parts = ("fsdp_part", "experts_part", "adapter_part")
    torchrun("config_worker.py", folder, *parts, ranks=2, timeout=420)
    return lambda part: [json.loads((folder / f"{part}_{rank}.json").read_text()) for rank in range(2)]
