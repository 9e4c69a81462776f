"""What the audit says is repaired can be imported here, and what it says is missing cannot."""

from __future__ import annotations

import importlib
from importlib.metadata import version

import pytest

import verl_compat.auto  # noqa: F401  (no-op where the .pth has activated already)

pytest.importorskip("griffe", reason="the audit needs the extra verl-compat[audit]")

from verl_compat.audit.audit import audit, subject_of, upstream_of
from verl_compat.audit.errors import NoNetworkError
from verl_compat.audit.findings import Finding
from verl_compat.audit.sources import Source, given

NAMES = ("missing-module", "missing-name", "missing-attribute")


def source(dist: str, text: str) -> Source:
    subject = subject_of(dist)
    return given(subject, upstream_of(subject), text)


@pytest.fixture(scope="module")
def findings() -> tuple[Finding, ...]:
    providers = {dist: source(dist, "installed") for dist in ("megatron-bridge", "megatron-core")}
    assert {dist: found.version for dist, found in providers.items()} == {dist: version(dist) for dist in providers}
    try:
        consumers = [source("verl", release) for release in ("0.8.0", "0.9.1")]
    except NoNetworkError as error:
        pytest.skip(str(error))
    results = [result for consumer in consumers for result in audit(consumer, providers, among=False)]
    return tuple(f for result in results for f in result.unguarded if f.problem in NAMES)


def reachable(symbol: str) -> bool:
    """Whether a dotted path exists for real, with verl-compat active."""
    parts = symbol.split(".")
    for length in range(len(parts), 0, -1):
        name = ".".join(parts[:length])
        try:
            here = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is not None and not name.startswith(error.name):
                raise
            continue
        try:
            for part in parts[length:]:
                here = getattr(here, part)
        except AttributeError:
            return False
        return True
    return False


def test_names_said_to_be_repaired_are_there(findings: tuple[Finding, ...]) -> None:
    repaired = {f.symbol for f in findings if f.repaired_by}
    if version("megatron-bridge") < "0.5":
        assert len(repaired) >= 8
    assert {symbol for symbol in repaired if not reachable(symbol)} == set()


def test_names_said_to_be_missing_are_not(findings: tuple[Finding, ...]) -> None:
    missing = {f.symbol for f in findings if not f.repaired_by}
    assert {symbol for symbol in missing if reachable(symbol)} == set()
