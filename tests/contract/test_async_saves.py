"""Asynchronous Megatron saves with the real verl: the method that its trainer looks for."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from packaging.version import Version

from support.versions import VERL
from verl_compat import status


@pytest.fixture
def workers(monkeypatch):
    if VERL is None or Version("0.8") > VERL:
        pytest.skip("verl 0.8 or newer is not installed in this environment")
    for server in ("uvicorn", "fastapi"):  # the rollout's HTTP server, imported on the way and not used
        try:
            importlib.import_module(server)
        except ImportError:
            monkeypatch.setitem(sys.modules, server, MagicMock())
    return importlib.import_module("verl.workers.engine_workers")


def test_finalizer_is_dispatched_as_save_checkpoint_is(workers):
    worker = workers.ActorRolloutRefWorker
    ours, upstreams = worker.async_calls_finalize_fn_exec, worker.save_checkpoint
    assert status().outcome("verl_ge_0_8_async_save_finalize") in ("applied", "untested")
    settings = [{k: v for k, v in vars(method).items() if k != "__wrapped__"} for method in (ours, upstreams)]
    assert settings[0] == settings[1]
    assert settings[0]


def test_finalizer_does_nothing_without_saves(workers):
    worker = object.__new__(workers.ActorRolloutRefWorker)
    assert worker.async_calls_finalize_fn_exec(blocking=True) is None


def run_saves(out: Path, *how: str) -> tuple[list[str], list[str], str]:
    """What the tracker said when each save returned; the checkpoints that are whole at the end; the tracker then."""
    script = Path(__file__).with_name("async_save.py")
    done = subprocess.run(
        [sys.executable, str(script), str(out), *how],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    returned = [line.split()[2] for line in done.stdout.splitlines() if line.startswith("RETURNED")]
    whole = sorted(path.relative_to(out).parts[0] for path in out.rglob("dist_ckpt/metadata.json"))
    tracker = out / "latest_checkpointed_iteration.txt"
    said = "finished before save_checkpoint returns" in done.stderr
    assert said is not bool(how), done.stderr[-3000:]
    return returned, whole, tracker.read_text() if tracker.exists() else "nothing"


megatron = pytest.mark.skipif(VERL is None, reason="no verl in this environment")


@megatron
def test_save_that_no_trainer_finalises_is_finished(tmp_path):
    """Kind: work that is handed over to somebody who does not exist (verl_async_save_finish)."""
    assert run_saves(tmp_path) == (["1", "2"], ["global_step_1", "global_step_2"], "2")


@megatron
def test_save_that_a_trainer_finalises_stays_asynchronous(tmp_path):
    """The second save returns before it is finalised; verl 0.7's own finaliser counts.

    (verl_lt_0_8_async_save_drained)
    """
    returned, whole, tracker = run_saves(tmp_path, "drain")
    assert returned[0] == "nothing"
    assert (whole, tracker) == (["global_step_1", "global_step_2"], "2")
