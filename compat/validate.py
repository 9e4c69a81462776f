"""Check records: a hole, an overlap or a missing field is a failing test, not a surprise at run time."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from verl_compat.records import KINDS, Adapter, Add, Replace, Upstream
from verl_compat.versions import base_version, below_range, in_range


def problems(adapters: Iterable[Adapter], upstreams: Mapping[str, Upstream]) -> list[str]:
    """Everything that is wrong with a set of records, one text per problem."""
    checked = list(adapters)
    found: list[str] = []
    for adapter in checked:
        texts = [*_fields(adapter), *_specifiers(adapter, upstreams)]
        if not texts:  # the checks below need readable specifiers
            texts = [*_tested(adapter), *_retirement(adapter, upstreams)]
        found += [f"{adapter.id}: {text}" for text in texts]
    return found if found else list(_siblings(checked, upstreams))


def _fields(adapter: Adapter) -> Iterator[str]:
    for name in ("id", "summary", "target", "applies", "patches", "why", "links"):
        if not getattr(adapter, name):
            yield f"field {name} is empty"
    if not re.fullmatch(r"[a-z][a-z0-9_]*", adapter.id):
        yield "the id is no file name of lower-case words"
    if adapter.kind not in KINDS:
        yield f"kind {adapter.kind!r} is not one of {', '.join(KINDS)}"
    if not adapter.retire_when and not adapter.keep:
        yield "retire_when is empty and keep does not say why"
    if not re.fullmatch(r"\w+(\.\w+)*", adapter.target):
        yield f"target {adapter.target!r} is no module name"


def _specifiers(adapter: Adapter, upstreams: Mapping[str, Upstream]) -> Iterator[str]:
    for dist, text in [*adapter.applies.items(), *adapter.retire_when.items()]:
        if dist not in upstreams:
            yield f"unknown distribution {dist!r}; known are {', '.join(sorted(upstreams))}"
        try:
            SpecifierSet(text)
        except InvalidSpecifier:
            yield f"{text!r} is no version specifier"
    packages = [upstream.package for upstream in upstreams.values()]
    if not any(adapter.target == package or adapter.target.startswith(package + ".") for package in packages):
        yield f"target {adapter.target!r} belongs to no known upstream"


def _tested(adapter: Adapter) -> Iterator[str]:
    for pair in adapter.tested:
        for dist, specifier in adapter.applies.items():
            version = base_version(pair.get(dist))
            if version is None:
                yield f"tested {dict(pair)} states no readable version of {dist}"
            elif not in_range(version, specifier):
                yield f"tested {dist} {version} lies outside {specifier}"


def _retirement(adapter: Adapter, upstreams: Mapping[str, Upstream]) -> Iterator[str]:
    """Known releases are in range, or older, or retired: nothing twice, nothing left out."""
    for dist, retired in adapter.retire_when.items():
        applies = adapter.applies.get(dist)
        if applies is None:
            yield f"retire_when names {dist}, which applies does not"
            continue
        for version in map(Version, upstreams[dist].known):
            inside, gone = in_range(version, applies), in_range(version, retired)
            if inside and gone:
                yield f"{dist} {version} is both in {applies} and retired by {retired}"
            if not inside and not gone and not below_range(version, applies):
                yield f"{dist} {version} is neither in {applies} nor retired by {retired}"


def _siblings(adapters: list[Adapter], upstreams: Mapping[str, Upstream]) -> Iterator[str]:
    """Adapters that set the same name must share out the releases."""
    same: dict[tuple[str, str], list[Adapter]] = defaultdict(list)
    for adapter in adapters:
        for patch in adapter.patches:
            if isinstance(patch, (Add, Replace)):
                same[adapter.target, patch.path].append(adapter)
    for (target, path), group in same.items():
        for first, second in combinations(group, 2):
            if _overlap(first, second, upstreams):
                yield f"{first.id} and {second.id} both set {target}.{path} for the same releases"
        yield from (f"{target}.{path}: {text}" for text in _holes(group, upstreams))


def _overlap(first: Adapter, second: Adapter, upstreams: Mapping[str, Upstream]) -> bool:
    common = first.applies.keys() & second.applies.keys()
    return all(_covered(first, dist, upstreams) & _covered(second, dist, upstreams) for dist in common)


def _holes(group: list[Adapter], upstreams: Mapping[str, Upstream]) -> Iterator[str]:
    if len(group) < 2:
        return
    for dist in set.intersection(*(set(adapter.applies) for adapter in group)):
        covered = sorted(set.union(*(_covered(adapter, dist, upstreams) for adapter in group)))
        for version in map(Version, upstreams[dist].known):
            if covered and covered[0] < version < covered[-1] and version not in covered:
                yield f"{dist} {version} lies in a hole between {', '.join(adapter.id for adapter in group)}"


def _covered(adapter: Adapter, dist: str, upstreams: Mapping[str, Upstream]) -> set[Version]:
    known = map(Version, upstreams[dist].known)
    return {version for version in known if in_range(version, adapter.applies[dist])}
