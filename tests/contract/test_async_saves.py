"""Asynchronous Megatron saves with the real verl: the method that its trainer looks for."""

from __future__ import annotations

import importlib
import sys
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
