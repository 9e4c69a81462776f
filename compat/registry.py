"""The records, loaded as late as possible: by target while it is imported, all of them for reports."""

from __future__ import annotations

import importlib
from functools import lru_cache

from verl_compat.adapters import TARGETS
from verl_compat.records import Adapter, Upstream


def load(adapter_id: str) -> Adapter:
    """The record of one adapter.

    Raises:
        KeyError: no adapter has this id.
    """
    name = f"verl_compat.adapters.{adapter_id}"
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise KeyError(adapter_id) from None
    adapter: Adapter = module.ADAPTER
    return adapter


def for_target(target: str) -> tuple[Adapter, ...]:
    """The adapters that a module triggers, in the order of the index."""
    return tuple(load(adapter_id) for adapter_id in TARGETS.get(target, ()))


def all_adapters() -> tuple[Adapter, ...]:
    """Every record, by id."""
    return tuple(load(adapter_id) for adapter_id in sorted({i for ids in TARGETS.values() for i in ids}))


@lru_cache(maxsize=1)
def upstreams() -> dict[str, Upstream]:
    """The upstreams that adapters are written for, by distribution name."""
    from verl_compat.adapters.upstreams import UPSTREAMS

    return {upstream.dist: upstream for upstream in UPSTREAMS}


def note_references() -> tuple[str, ...]:
    """References to functions that have something to say about the versions found."""
    from verl_compat.adapters.upstreams import NOTES

    return NOTES


def libraries() -> tuple[str, ...]:
    """The upstreams of which the others declare ranges in their metadata."""
    from verl_compat.adapters.upstreams import LIBRARIES

    return LIBRARIES
