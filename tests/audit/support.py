"""Releases fetched once per session, and audits of pairs of them."""

from __future__ import annotations

from functools import cache

from verl_compat.audit.audit import check, import_roots, library, no_collection, subject_of, upstream_of
from verl_compat.audit.findings import Finding, Result
from verl_compat.audit.read.uses import Consumer
from verl_compat.audit.resolve.library import Library
from verl_compat.audit.sources import Source, given

NAMES = {"bridge": "megatron-bridge", "core": "megatron-core"}


@cache
def source(option: str, version: str) -> Source:
    subject = subject_of(NAMES.get(option, option))
    return given(subject, upstream_of(subject), version)


@cache
def consumer(option: str, version: str) -> Consumer:
    with no_collection():
        return source(option, version).consumer(import_roots())


@cache
def provider(option: str, version: str) -> Library:
    return library(source(option, version))


@cache
def audited(consumer_release: str, *provider_releases: str) -> Result:
    """``audited("verl 0.8.0", "bridge 0.4.2", "core 0.17.1")``."""
    with no_collection():
        libraries = [provider(*release.split()) for release in provider_releases]
        return check(consumer(*consumer_release.split()), libraries)


def names(result: Result, *, guard: str | None = "none", dist: str | None = None) -> set[tuple[str, int, str]]:
    """(file name, line, last part of the symbol) of the findings."""
    return {
        (finding.file.rpartition("/")[2], finding.line, finding.symbol.rpartition(".")[2])
        for finding in result.findings
        if (guard is None or finding.guard == guard) and (dist is None or finding.provider == NAMES.get(dist, dist))
    }


def at(result: Result, file: str, line: int) -> list[Finding]:
    """The findings in one place."""
    return [f for f in result.findings if f.file.endswith(file) and f.line == line]


def imports(result: Result) -> int:
    """Unguarded imports of names that do not exist."""
    return sum(f.problem in ("missing-module", "missing-name") for f in result.unguarded)
