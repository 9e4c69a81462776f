"""Many versions of each: every consumer release on every provider release."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from packaging.version import Version

from .audit import check, import_roots, library, no_collection, subject_of
from .findings import Finding, Result
from .resolve.library import Library
from .sources import Source

Load = Callable[[str, str], Source]
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Cell:
    """One consumer release on one provider release.

    Attributes:
        consumer, consumer_version, provider, version: the pair.
        raw: unguarded findings in names of the provider.
        left: those that verl-compat does not repair.
        result: all of them, the guarded ones too.
    """

    consumer: str
    consumer_version: str
    provider: str
    version: str
    raw: int
    left: int
    result: Result


def run(consumers: Sequence[tuple[str, str]], providers: Mapping[str, Sequence[str]], load: Load,
        progress: Progress) -> list[Cell]:  # fmt: skip
    """All cells; consumers are (distribution, version) pairs, providers are versions by distribution.

    A provider that is only complete with a partner (Bridge with core) is looked up together with the
    release that it is paired with; the findings counted are in the provider's own names.
    """
    roots = import_roots()
    cells: list[Cell] = []
    with no_collection():
        read = {pair: load(*pair).consumer(roots) for pair in consumers}
        for dist, versions in providers.items():
            rows: dict[tuple[str, str], list[Cell]] = {}
            for version in sorted(versions, key=Version):
                libraries = [library(load(dist, version)), *_partner(dist, version, load)]
                for pair, consumer in read.items():
                    if dist in subject_of(pair[0]).uses:
                        progress(f"{pair[0]} {pair[1]} on {dist} {version}")
                        cell = _cell(pair, dist, version, check(consumer, libraries))
                        rows.setdefault(pair, []).append(cell)
            for row in rows.values():
                cells += since(row)
    return cells


def _partner(dist: str, version: str, load: Load) -> list[Library]:
    subject = subject_of(dist)
    series = ".".join(version.split(".")[:2])
    partner = subject.partner.get(series)
    return [library(load(subject.partner_dist, partner))] if partner else []


def _cell(pair: tuple[str, str], dist: str, version: str, result: Result) -> Cell:
    own = tuple(finding for finding in result.findings if finding.provider == dist)
    result = replace(result, findings=own)
    return Cell(*pair, dist, version, len(result.unguarded), len(result.left), result)


def since(row: Sequence[Cell]) -> list[Cell]:
    """Fill in from which provider release on each finding holds, reading a row in version order."""
    first: dict[tuple[object, ...], str] = {}
    filled = []
    for cell in row:
        here = {identity(finding) for finding in cell.result.findings}
        first = {known: version for known, version in first.items() if known in here}
        for known in here:
            first.setdefault(known, cell.version)
        findings = tuple(replace(f, since=_since(first[identity(f)], row)) for f in cell.result.findings)
        filled.append(replace(cell, result=replace(cell.result, findings=findings)))
    return filled


def _since(version: str, row: Iterable[Cell]) -> str:
    oldest = next(iter(row)).version
    return f"<={version}" if version == oldest else version


def identity(finding: Finding) -> tuple[object, ...]:
    """What makes two findings of a row the same."""
    return (finding.file, finding.line, finding.symbol, finding.problem)
