"""Version-independent helpers: upstream's own where it exists, else the shim."""

from __future__ import annotations

from typing import Any

from verl_compat.refs import resolve as resolve_reference


def names() -> tuple[str, ...]:
    """The public names beside the engine's own."""
    from verl_compat.adapters.public import HELPERS, OWN

    return (*HELPERS, *OWN)


def resolve(name: str) -> Any:
    """The object behind ``from verl_compat import <name>``.

    Raises:
        AttributeError: the name is not public.
        ImportError: the upstream that the helper is about is not installed.
    """
    from verl_compat.adapters.public import HELPERS, OWN

    if name in OWN:
        return _own(OWN[name])
    if name not in HELPERS:
        raise AttributeError(f"module 'verl_compat' has no attribute {name!r}; it has {', '.join(sorted(names()))}")
    upstream, shim = HELPERS[name]
    try:
        return resolve_reference(upstream)
    except ModuleNotFoundError as error:
        if error.name != upstream.partition(":")[0]:
            raise  # a trouble of upstream's own must not be hidden by a fall-back
    except AttributeError:
        pass
    return resolve_reference(shim)


def _own(reference: str) -> Any:
    """A module of ours (``package.module``) or an object in one (``package.module:name``)."""
    if ":" in reference:
        return resolve_reference(reference)
    import importlib

    return importlib.import_module(reference)
