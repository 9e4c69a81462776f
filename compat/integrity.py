"""What integrity checks find: told once, kept for ``status()`` and reports; a fault of a check stops nothing."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from verl_compat.log import logger, warn_once
from verl_compat.state import STATE

_found: dict[str, dict[str, Any]] = {}
_lines: dict[str, str] = {}
_lock = threading.Lock()


class IntegrityError(RuntimeError):
    """Something was lost or is wrong that a run must not go on with; the text says what, where and what to do."""


def note(check: str, **found: Any) -> None:
    """Keep what a check found last (JSON-ready values), with how often it ran."""
    with _lock:
        runs = _found.get(check, {}).get("runs", 0)
        _found[check] = {**found, "runs": runs + 1}


def results() -> dict[str, Any]:
    """The latest result of each check of this process, by adapter id."""
    with _lock:
        return {check: dict(found) for check, found in _found.items()}


def forget() -> None:
    """Drop all results (the next run of each check counts as its first)."""
    with _lock:
        _found.clear()
        _lines.clear()


def tell(check: str, text: str) -> None:
    """Say what a check found: one warning per process and text.

    Raises:
        IntegrityError: in strict mode (``VERL_COMPAT=strict``).
    """
    text = f"{text} (silence: VERL_COMPAT_DISABLE={check})"
    if STATE.switches.mode == "strict":
        raise IntegrityError(text)
    warn_once(text)


def refuse(check: str, text: str) -> None:
    """Stop the caller.

    Raises:
        IntegrityError: always.
    """
    raise IntegrityError(f"{text} (silence: VERL_COMPAT_DISABLE={check})")


def look(check: str, function: Callable[..., Any], *args: Any) -> Any:
    """Run one check; its own faults become the outcome ``failed`` and one line, and None is returned.

    Raises:
        IntegrityError: as the check says.
    """
    try:
        return function(*args)
    except IntegrityError:
        raise
    except Exception as error:
        reason = f"the check itself failed: {type(error).__name__}: {error}"
        with contextlib.suppress(Exception):
            entry = STATE.entries.get(check)
            if entry is not None:
                STATE.record(replace(entry, outcome="failed", reason=reason))
        warn_once(f"{check}: {reason}; nothing was checked, and the run goes on")
        return None


def say_summary(part: str, text: str, *, last: bool = False) -> None:
    """Add to the one line that an orderly first sync ends with; logged at INFO when ``last``.

    For instance ``weights: 311 sent, 311 loaded; configuration: 27 fields equal; checkpoint: complete``.
    """
    with _lock:
        _lines[part] = text
        line = "; ".join(f"{name}: {said}" for name, said in _lines.items())
    if last:
        with contextlib.suppress(Exception):
            logger.info("verl-compat: %s", line)


def summary_line() -> str:
    """What :func:`say_summary` has gathered so far, as one line."""
    with _lock:
        return "; ".join(f"{name}: {said}" for name, said in _lines.items())
