"""Fixtures of the engine's own tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.world import World, fresh
from verl_compat import _boot, adapters, engine
from verl_compat.registry import upstreams


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A fresh world; everything that tests register or import is gone afterwards."""
    for variable in ("VERL_COMPAT", "VERL_COMPAT_DISABLE", "VERL_COMPAT_ONLY", "VERL_COMPAT_ENABLE"):
        monkeypatch.delenv(variable, raising=False)
    before_modules, before_known = set(sys.modules), dict(upstreams())
    saved_targets = dict(adapters.TARGETS)
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    fresh(None)
    made = World(site)
    sys.modules["world_shims"] = made.shims
    adapters.TARGETS.clear()
    engine.activate()
    yield made
    engine.revert()
    fresh(saved_targets)
    upstreams().clear()
    upstreams().update(before_known)
    for name in set(sys.modules) - before_modules:
        del sys.modules[name]
    if _boot.finder() is None:
        _boot.install()
