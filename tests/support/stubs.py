"""Stand-ins for upstreams: the few lines of a release that an adapter touches, under its real names.

Only where the real wheel cannot be imported without a GPU or its full dependencies; each test that
uses them says so, and keeps the real source's signatures.
"""

from __future__ import annotations

import importlib
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from verl_compat import engine, log
from verl_compat.registry import load, upstreams
from verl_compat.state import STATE

NAMESPACES = {"megatron"}
SWITCHES = ("VERL_COMPAT", "VERL_COMPAT_DISABLE", "VERL_COMPAT_ONLY", "VERL_COMPAT_ENABLE", "VERL_COMPAT_REPORT_DIR")


class Stubs:
    """Writes stand-in distributions into a folder on ``sys.path``."""

    def __init__(self, site: Path) -> None:
        self.site = site
        self.tops: set[str] = set()

    def dist(self, dist: str, version: str, **modules: str) -> None:
        """A distribution with dist-info; ``modules``: names below its package (``__`` for ``.``) and their source."""
        package = upstreams()[dist].package
        self.module(package, "")
        for name, source in modules.items():
            self.module(f"{package}.{name.replace('__', '.')}", source)
        info = self.site / f"{dist.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {dist}\nVersion: {version}\n")
        STATE.forget_switches()
        importlib.invalidate_caches()

    def module(self, name: str, source: str) -> None:
        """One module, with the packages above it."""
        parts = name.split(".")
        self.tops.add(parts[0])
        folder = self.site
        for part in parts[:-1]:
            folder = folder / part
            folder.mkdir(exist_ok=True)
            if part not in NAMESPACES and not (folder / "__init__.py").exists():
                (folder / "__init__.py").write_text("")
        text = textwrap.dedent(source)
        if (folder / parts[-1]).is_dir() or name in {u.package for u in upstreams().values()}:
            (folder / parts[-1]).mkdir(exist_ok=True)
            (folder / parts[-1] / "__init__.py").write_text(text)
        else:
            (folder / f"{parts[-1]}.py").write_text(text)
        importlib.invalidate_caches()

    def load(self, name: str) -> ModuleType:
        """Import a module."""
        return importlib.import_module(name)

    def outcome(self, adapter_id: str) -> str:
        """The outcome of an adapter in this process; ``pending`` where its target was not imported."""
        entry = STATE.entries.get(adapter_id)
        return "pending" if entry is None else entry.outcome


@pytest.fixture
def stubs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stubs]:
    """Stand-ins that are gone afterwards, with everything that adapters did to them."""
    for variable in SWITCHES:
        monkeypatch.delenv(variable, raising=False)
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    before, entries = set(sys.modules), dict(STATE.entries)
    log._said.clear()
    STATE.forget_switches()
    engine.activate()
    made = Stubs(site)
    yield made
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in made.tops:
            del sys.modules[name]
    for adapter_id in set(STATE.entries) - set(entries):
        if load(adapter_id).target.partition(".")[0] in made.tops:
            del STATE.entries[adapter_id]
    STATE.forget_switches()
    importlib.invalidate_caches()
