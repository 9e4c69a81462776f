"""Records in words, for the command and for the pages that are generated."""

from __future__ import annotations

from verl_compat.records import Adapter


def ranges(adapter: Adapter) -> str:
    """The ranges of an adapter in one line."""
    return " and ".join(f"{dist} {specifier}".strip() for dist, specifier in adapter.applies.items())


def retirement(adapter: Adapter) -> str:
    """From which releases on nobody needs an adapter, or why none is known."""
    return " or ".join(f"{dist} {spec}" for dist, spec in adapter.retire_when.items()) or adapter.keep
