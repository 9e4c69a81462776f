"""Version-independent helpers: upstream's own where it exists, else the shim."""

from __future__ import annotations

from typing import Any

from verl_compat.refs import resolve as resolve_reference


def names() -> tuple[str, ...]:
    """The public names beside the engine's own."""
    from verl_compat.adapters.public import HELPERS, OWN

    return (*HELPERS, *OWN)


def listed() -> tuple[str, ...]:
    """The names for ``dir()``: those whose upstream is here, so that ``help()`` and inspection work without it."""
    from verl_compat.adapters.public import HELPERS, OWN
    from verl_compat.locate import package_folder
    from verl_compat.registry import upstreams

    here = [f"{each.package}." for each in upstreams().values() if package_folder(each.package) is not None]
    return (*(name for name, (upstream, _) in HELPERS.items() if upstream.startswith(tuple(here))), *OWN)


def resolve(name: str) -> Any:
    """The object behind ``from verl_compat import <name>``.

    Raises:
        AttributeError: the name is not public.
        ImportError: the upstream that the helper is about cannot be imported.
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
            raise _unavailable(name, upstream, error) from None  # no fall-back hides a trouble of upstream's own
    except AttributeError:
        pass
    try:
        return resolve_reference(shim)
    except ModuleNotFoundError as error:
        raise _unavailable(name, upstream, error) from None


def _unavailable(name: str, upstream: str, error: ModuleNotFoundError) -> ImportError:
    package = ".".join(upstream.partition(":")[0].split(".")[:2])
    return ImportError(
        f"verl_compat.{name} works on {package}, which cannot be imported here: {error}. "
        f"Install what provides it; `import {package}` shows more.",
        name=error.name,
    )


def _own(reference: str) -> Any:
    """A module of ours (``package.module``) or an object in one (``package.module:name``)."""
    if ":" in reference:
        return resolve_reference(reference)
    import importlib

    return importlib.import_module(reference)
