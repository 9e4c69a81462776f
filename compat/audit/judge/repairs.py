"""Which adapters repair a finding: derived from their records, never written by hand.

An adapter counts where its ranges hold, it is on by default, and one of its patches

* adds the missing name (``Add``) or provides the missing module (``Provide``),
* replaces or wraps the upstream function that a call does not fit (``Replace``, ``Wrap``), or
* replaces the consumer's own function, or table, that the use stands in (``Replace``); what is
  only used from replaced functions is replaced with them.

Messages (``Check``, ``OnImportError``, kind ``diagnose``) repair nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import griffe

from verl_compat.records import Adapter, Add, Has, Lacks, Provide, Replace, Wrap
from verl_compat.versions import base_version, in_range

from ..findings import Finding, Result
from ..read.uses import Consumer
from ..resolve.classes import mro as mro_of
from ..resolve.library import World

MISSING = ("missing-module", "missing-name", "missing-attribute", "missing-patch-target")
CALLS = ("unknown-keyword", "missing-argument", "too-many-arguments")


def in_effect(adapters: Sequence[Adapter], versions: Mapping[str, str], world: World) -> tuple[Adapter, ...]:
    """The adapters that would be applied at these versions."""
    return tuple(a for a in adapters if a.default and a.kind != "diagnose" and _applies(a, versions, world))


def _applies(adapter: Adapter, versions: Mapping[str, str], world: World) -> bool:
    for dist, specifier in adapter.applies.items():
        version = base_version(versions.get(dist))
        if version is None or not in_range(version, specifier):
            return False
    library = world.owner(adapter.target)
    if library is None or not library.is_module(adapter.target):
        return True  # the consumer's own module, or one that is to be provided
    for feature in adapter.needed:
        if isinstance(feature, (Lacks, Has)):
            states = [library.resolve(f"{adapter.target}.{path}").state for path in feature.paths]
            if isinstance(feature, Lacks) and all(state == "found" for state in states):
                return False
            if isinstance(feature, Has) and "missing" in states:
                return False
    return True


class Repairs:
    """The adapters in effect at one version set, asked about findings."""

    def __init__(self, adapters: Sequence[Adapter], consumer: Consumer, world: World) -> None:
        self.world = world
        self.consumer = consumer
        versions = {library.dist: library.version for library in world.libraries}
        versions[consumer.dist] = consumer.version
        self.adapters = in_effect(adapters, versions, world)
        self._scopes: dict[str, tuple[str, ...]] = {}

    def mark(self, result: Result) -> Result:
        """The result with ``repaired_by`` filled in."""
        return replace(result, findings=tuple(replace(f, repaired_by=self.of(f)) for f in result.findings))

    def of(self, finding: Finding) -> tuple[str, ...]:
        """Ids of the adapters that repair a finding."""
        found = {a.id for a in self.adapters if any(self._repairs(finding, a, patch) for patch in a.patches)}
        return tuple(sorted(found | set(self._scope(finding.scope))))

    def _repairs(self, finding: Finding, adapter: Adapter, patch: object) -> bool:
        if isinstance(patch, Provide):
            named = {f"{adapter.target}.{name}" for name in patch.names}
            return finding.problem in MISSING and (
                finding.symbol == adapter.target or any(_within(finding.symbol, name) for name in named)
            )
        if isinstance(patch, Add):
            return finding.problem in MISSING and self._adds(finding.symbol, adapter.target, patch.path)
        if isinstance(patch, (Replace, Wrap)) and finding.problem in CALLS:
            paths = {f"{adapter.target}.{patch.path}"}
            if patch.home:
                paths.add(f"{patch.home}.{patch.path}")
            return finding.symbol in paths
        return False

    def _adds(self, symbol: str, target: str, path: str) -> bool:
        if _within(symbol, f"{target}.{path}"):
            return True
        owner, _, name = path.rpartition(".")
        if not owner or symbol.rpartition(".")[2] != name:
            return False
        return f"{target}.{owner}" in self._ancestors(symbol.rpartition(".")[0])

    def _ancestors(self, path: str) -> set[str]:
        """The class of a path and all that it inherits from."""
        library = self.world.owner(path)
        answer = library.resolve(path) if library is not None else None
        if library is None or answer is None or answer.obj is None or answer.obj.kind is not griffe.Kind.CLASS:
            return set()
        return {cls if isinstance(cls, str) else cls.path for _, cls in mro_of(library, answer.obj)}

    def _is_table(self, path: str) -> bool:
        """Whether a path is a module-level variable of the consumer."""
        module, _, name = path.rpartition(".")
        return name in self.consumer.modules.get(module, {})

    def _scope(self, scope: str, depth: int = 0) -> tuple[str, ...]:
        """Adapters that replace the consumer code which a scope belongs to."""
        if scope in self._scopes:
            return self._scopes[scope]
        self._scopes[scope] = ()  # a circle of references repairs nothing
        found = {
            a.id for a in self.adapters for p in a.patches
            if isinstance(p, Replace) and _within(scope, f"{a.target}.{p.path}")
        }  # fmt: skip
        here = scope
        while not found and here and depth < 4:
            users = [c.scope for c in self.consumer.references.get(here, ()) if not _within(c.scope, here)]
            if users and (here in self.consumer.functions or self._is_table(here)):
                by_user = [self._scope(user, depth + 1) for user in users]
                if all(by_user):
                    found = {adapter for ids in by_user for adapter in ids}
            here = here.rpartition(".")[0]
        self._scopes[scope] = tuple(sorted(found))
        return self._scopes[scope]


def _within(path: str, outer: str) -> bool:
    return path == outer or path.startswith(outer + ".")
