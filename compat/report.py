"""What happened in this process, as data; one JSON file per process where reports were asked for."""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from verl_compat import __version__, _boot
from verl_compat.decide import Condition, decide
from verl_compat.declared import outside
from verl_compat.facts import facts
from verl_compat.log import warn_once
from verl_compat.processes import children, command_line
from verl_compat.records import Adapter
from verl_compat.refs import resolve
from verl_compat.registry import all_adapters, libraries, note_references, upstreams
from verl_compat.state import STATE
from verl_compat.versions import Found

SCHEMA = 1
try:
    _ASKED_FROM = Path.cwd()  # a relative folder stays the same one when the process changes its own
except OSError:
    _ASKED_FROM = Path()


@dataclass(frozen=True)
class AdapterStatus:
    """One adapter in one process: outcome, reason and the conditions behind it."""

    id: str
    outcome: str
    reason: str
    conditions: tuple[Condition, ...] = ()


@dataclass(frozen=True)
class Status:
    """One process (or, for ``predicted``, this environment before anything is imported).

    Attributes:
        active: whether the finder is in place, or will be when a watched package is imported.
        predicted: True when nothing was imported and outcomes say what would happen;
            an outcome ``would-apply`` occurs only then.
        pythons: child processes that run a Python, pid -> command line (Linux only).
        facts: what adapters noted while they worked, by adapter id.
        notes: what is to be said about the versions found, such as whether they go together.
    """

    mode: str
    active: bool
    predicted: bool
    pid: int
    ppid: int
    host: str
    command: str
    versions: tuple[Found, ...]
    adapters: tuple[AdapterStatus, ...]
    pythons: dict[int, str]
    facts: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def outcome(self, adapter_id: str) -> str:
        """The outcome of one adapter.

        Raises:
            KeyError: no adapter has this id.
        """
        return {adapter.id: adapter.outcome for adapter in self.adapters}[adapter_id]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form, documented in ``docs/report.md``."""
        return {"schema": SCHEMA, "verl_compat": __version__, **asdict(self)}


def current_status() -> Status:
    """The state of this process; targets that were not imported are ``pending``."""
    return _status(predicted=False)


def predicted_status() -> Status:
    """What would be applied here, told without importing any upstream."""
    return _status(predicted=True)


def _status(predicted: bool) -> Status:
    finder = _boot.finder()
    if finder is not None and finder.deferred:
        from verl_compat.engine import poll_deferred

        poll_deferred(finder.deferred)
    versions = tuple(STATE.found(dist) for dist in upstreams())
    return Status(
        mode=STATE.switches.mode,
        active=STATE.switches.mode != "off" and _boot.active(),
        predicted=predicted,
        pid=os.getpid(),
        ppid=os.getppid(),
        host=socket.gethostname(),
        command=command_line(),
        versions=versions,
        adapters=tuple(_adapter_status(adapter, predicted) for adapter in all_adapters()),
        pythons=_children(),
        facts=facts(),
        notes=_notes(versions),
    )


def _children() -> dict[int, str]:
    """Python children seen so far: one that has ended since must still be accounted for."""
    STATE.children.update(children())
    return dict(STATE.children)


def _notes(versions: tuple[Found, ...]) -> tuple[str, ...]:
    """What the note functions say; one that fails says nothing."""
    texts = {what.dist: what.raw or "unknown" for what in versions if not what.missing}
    said = []
    for reference in note_references():
        try:
            said.append(resolve(reference)(texts))
        except Exception as error:
            warn_once(f"no note by {reference}: {error!r}")
    try:
        said += outside({what.dist: what for what in versions}, libraries())
    except Exception as error:
        warn_once(f"declared ranges cannot be read: {error!r}")
    return tuple(text for text in said if text)


def _adapter_status(adapter: Adapter, predicted: bool) -> AdapterStatus:
    entry = STATE.entries.get(adapter.id)
    if entry is not None:
        return AdapterStatus(entry.id, entry.outcome, entry.reason, entry.conditions)
    if predicted:
        return predict(adapter)
    disabled = STATE.switches.why_disabled(adapter)
    if disabled:
        return AdapterStatus(adapter.id, "disabled", disabled)
    if adapter.target in sys.modules and not STATE.reverted:
        reason = f"{adapter.target} was imported past our finder (by another import hook?); activate() patches it"
        return AdapterStatus(adapter.id, "pending", reason)
    return AdapterStatus(adapter.id, "pending", f"{adapter.target} is not imported")


def predict(adapter: Adapter) -> AdapterStatus:
    """What an adapter would do in this environment."""
    try:
        decision = decide(adapter, STATE.switches, STATE.found, None)
    except Exception as error:
        return AdapterStatus(adapter.id, "failed", f"{type(error).__name__}: {error}")
    return AdapterStatus(adapter.id, decision.outcome or "would-apply", decision.reason, decision.conditions)


def report_dir() -> Path | None:
    """``VERL_COMPAT_REPORT_DIR``, if set."""
    text = os.environ.get("VERL_COMPAT_REPORT_DIR")
    return _ASKED_FROM / text if text else None


def write_report() -> None:
    """Leave this process's report, replacing its earlier one; trouble is one warning, never an error."""
    folder = report_dir()
    if folder is None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(current_status().to_dict(), default=str, indent=1)
        _replace_file(folder / f"{socket.gethostname()}-{os.getpid()}.json", text)
    except Exception as error:
        warn_once(f"no report was written to VERL_COMPAT_REPORT_DIR={folder}: {error}")


def _replace_file(file: Path, text: str) -> None:
    """Readers see the old report or the new one, never half of it."""
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=".", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        os.replace(name, file)
    except BaseException:
        os.unlink(name)
        raise


if report_dir() is not None:
    import atexit

    # children that were started after the last import are in the final report only
    atexit.register(write_report)
    os.register_at_fork(after_in_child=write_report)
