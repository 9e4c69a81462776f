"""bridge_plan_cache under any order of events: each export equals Bridge's own at that moment.

The same machine runs over two pipeline ranks in tests/distributed, with changes on one rank only.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from support import write_tiny_checkpoint
from support.plan_events import Events

pytestmark = pytest.mark.bridge
THOROUGH = bool(os.environ.get("VERL_COMPAT_THOROUGH"))


def test_events(tmp_path: Path) -> None:
    path = write_tiny_checkpoint(tmp_path, "qwen3", num_hidden_layers=1)
    machine = type("Events", (Events,), {"path": path})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=60 if THOROUGH else 6,
            stateful_step_count=40 if THOROUGH else 20,
            deadline=None,
            derandomize=not THOROUGH,
            suppress_health_check=list(HealthCheck),
            database=None,
        ),
    )
