"""A small world of made-up upstreams and adapters, for the engine's own tests."""

from __future__ import annotations

import importlib
import sys
import types
from dataclasses import replace
from pathlib import Path

from verl_compat import adapters, log
from verl_compat.records import Adapter, Add, Lacks, Patch, Upstream
from verl_compat.registry import upstreams
from verl_compat.state import STATE

LEAF = (
    "class Thing:\n    def run(self, x, y=1):\n        return ('up', x, y)\n\n\ndef helper(a, b):\n    return a + b\n"
)


class World:
    """Writes upstream packages to disk and registers adapters for them."""

    def __init__(self, site: Path) -> None:
        self.site = site
        self.shims = types.ModuleType("world_shims")

    def package(self, name: str, version: str | None = "0.4.2", metadata: bool = True, **modules: str) -> Path:
        """A package with leaf modules; ``version`` in its dist-info or, without one, in ``package_info.py``."""
        folder = self.site.joinpath(*name.split("."))
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "__init__.py").write_text(modules.pop("init", ""))
        for module, text in modules.items():
            (folder / f"{module}.py").write_text(text)
        dist = name.replace(".", "-")
        if metadata and version is not None:
            info = self.site / f"{dist.replace('-', '_')}-{version}.dist-info"
            info.mkdir(exist_ok=True)
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {dist}\nVersion: {version}\n")
        elif version is not None:
            (folder / "package_info.py").write_text(f'__version__ = "{version}"\n')
        upstreams()[dist] = Upstream(dist, name, ("package_info.py",), ("0.3.0", "0.4.2", "0.5.0"))
        importlib.invalidate_caches()
        return folder

    def adapter(self, adapter_id: str, *patches: Patch, **fields: object) -> Adapter:
        """Register an adapter for ``up.leaf`` of distribution ``up``, version below 0.5, unless told otherwise."""
        record = Adapter(
            id=adapter_id, kind="backport", summary="made up", target="up.leaf", applies={"up": ">=0.3.0,<0.5"},
            tested=({"up": "0.3.0"}, {"up": "0.4.2"}), needed=(), patches=patches, why="made up",
            links=("https://example.invalid/pr/1",), retire_when={"up": ">=0.5"},
        )  # fmt: skip
        record = replace(record, **fields)  # type: ignore[arg-type]
        module = types.ModuleType(f"verl_compat.adapters.{adapter_id}")
        module.ADAPTER = record  # type: ignore[attr-defined]
        sys.modules[module.__name__] = module
        adapters.TARGETS[record.target] = (*adapters.TARGETS.get(record.target, ()), adapter_id)
        return record

    def backport(self, adapter_id: str = "up_lt_0_5_new", **fields: object) -> Adapter:
        """The plainest adapter: adds ``up.leaf.new``."""
        self.shims.new = lambda: "shim"
        fields.setdefault("needed", (Lacks("new"),))
        return self.adapter(adapter_id, Add("new", "world_shims:new"), **fields)

    def outcome(self, adapter_id: str) -> str:
        """The outcome in this process."""
        return STATE.entries[adapter_id].outcome


def fresh(targets: dict[str, tuple[str, ...]] | None) -> None:
    """Forget what this process knows; put an index back."""
    STATE.entries.clear()
    STATE.forget_switches()
    log._said.clear()
    if targets is not None:
        adapters.TARGETS.clear()
        adapters.TARGETS.update(targets)
