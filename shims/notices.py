"""One wording for what is diagnosed: what was found, which versions, why it matters, what to do."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from importlib import metadata
from typing import Any

_logger = logging.getLogger("verl_compat")
_said: set[str] = set()


def installed(*dists: str) -> dict[str, str]:
    """The versions of those distributions that are installed."""
    found: dict[str, str] = {}
    for dist in dists:
        try:
            found[dist] = metadata.version(dist)
        except metadata.PackageNotFoundError:
            continue
    return found


def diagnosis(found: str, versions: Mapping[str, str], why: str, remedy: str) -> str:
    """One message: ``found (dist 1.2, dist 3.4). why remedy``."""
    listed = ", ".join(f"{dist} {version}" for dist, version in versions.items())
    return f"{found}{f' ({listed})' if listed else ''}. {why} {remedy}"


def say_once(adapter_id: str, text: str) -> None:
    """Log a warning, once per process and text, with the switch that silences it."""
    if text not in _said:
        _said.add(text)
        _logger.warning("verl-compat: %s [%s; VERL_COMPAT_DISABLE=%s silences]", text, adapter_id, adapter_id)


def forget() -> None:
    """Say everything again (for tests)."""
    _said.clear()


def before(adapter_id: str, check: Callable[..., str | None]) -> Callable[..., Any]:
    """A wrapper that lets ``check`` look at a call's arguments first; a text that it returns is said once.

    A check that fails says nothing: it never stands in the way of the call.
    """

    def wrapper(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            text = check(*args, **kwargs)
        except Exception as error:
            _logger.debug("verl-compat: %s could not look: %r", adapter_id, error)
            text = None
        if text:
            say_once(adapter_id, text)
        return original(*args, **kwargs)

    return wrapper


def setting(config: Any, name: str, default: Any = None) -> Any:
    """One setting of a dict, DictConfig, dataclass or object; ``default`` where it is absent or None."""
    value = config.get(name, default) if hasattr(config, "get") else getattr(config, name, default)
    return default if value is None else value


def on_error(adapter_id: str, explain: Callable[..., str | None]) -> Callable[..., Any]:
    """A wrapper that lets ``explain(error, *args, **kwargs)`` say what a failure means; the error goes on unchanged."""

    def wrapper(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        except Exception as error:
            try:
                text = explain(error, *args, **kwargs)
            except Exception:
                text = None
            if text:
                say_once(adapter_id, text)
            raise

    return wrapper
