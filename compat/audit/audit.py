"""Audit one version set: the consumer on its upstreams, and the upstreams on each other."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from verl_compat.records import Adapter, Audited, Upstream
from verl_compat.registry import all_adapters, upstreams

from .findings import Result
from .judge.check import Checker
from .judge.repairs import Repairs
from .read.uses import Consumer
from .resolve.library import Library, World
from .sources import Source


def subjects() -> tuple[Audited, ...]:
    """The distributions that the audit knows."""
    from verl_compat.adapters.upstreams import AUDITED

    known: tuple[Audited, ...] = AUDITED
    return known


def subject_of(dist: str) -> Audited:
    """The audited distribution of a name."""
    return next(subject for subject in subjects() if subject.dist == dist)


def upstream_of(subject: Audited) -> Upstream:
    """Its record among the upstreams."""
    return upstreams()[subject.dist]


def import_roots() -> dict[str, str]:
    """Distribution by import root, of all that is audited."""
    return {root: subject.dist for subject in subjects() for root in subject.roots}


@contextmanager
def no_collection() -> Iterator[None]:
    """Syntax trees are many objects without circles: the collector only costs time while they are built."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def library(source: Source) -> Library:
    """The library of a provider."""
    return Library(source.dist, subject_of(source.dist).roots, source.tree())


def check(consumer: Consumer, libraries: Sequence[Library], adapters: Sequence[Adapter] | None = None) -> Result:
    """One consumer on some providers, with the repairs marked."""
    world = World(libraries)
    result = Checker(consumer, world).run()
    known = all_adapters() if adapters is None else adapters
    return Repairs(known, consumer, world).mark(result)


def audit(consumer: Source | None, providers: Mapping[str, Source], among: bool = True) -> list[Result]:
    """A version set.

    Args:
        consumer: whose uses are checked; None to check only the upstreams on each other.
        providers: sources by distribution.
        among: check providers on those that they use, too (Bridge on core).
    """
    results = []
    with no_collection():
        libraries = {dist: library(source) for dist, source in providers.items()}
        roots = import_roots()
        if consumer is not None:
            used = tuple(libraries[dist] for dist in libraries if dist != consumer.dist)
            results.append(check(consumer.consumer(roots), used))
        for dist, source in providers.items() if among else ():
            used = tuple(libraries[other] for other in subject_of(dist).uses if other in libraries)
            if used and (consumer is None or dist != consumer.dist):
                results.append(check(source.consumer(roots), used))
    return results
