"""The hooks that the finder calls, and activation by hand.

In the default mode nothing here raises into an importer: each adapter's trouble ends as an
outcome and one warning.  ``VERL_COMPAT=strict`` raises :class:`StrictError` instead.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from verl_compat import _boot
from verl_compat.adapters import TARGETS
from verl_compat.decide import Decision, decide
from verl_compat.later import Later
from verl_compat.log import warn_once
from verl_compat.patches import CollisionError, commit, prepare, undo
from verl_compat.provide import ProvideLoader, take_away
from verl_compat.records import Adapter, Check, OnImportError, Provide
from verl_compat.refs import resolve
from verl_compat.registry import for_target, upstreams
from verl_compat.report import write_report
from verl_compat.state import STATE, Entry, StrictError

__all__ = ["StrictError", "activate", "after_exec", "before_exec", "revert"]


def activate() -> None:
    """Install the finder; patch watched modules that are already imported, marked ``late``."""
    STATE.reverted = False
    finder = _boot.install()
    if finder is None:
        return
    STATE.forget_switches()
    for target in TARGETS:
        module = sys.modules.get(target)
        if module is None:
            continue
        if _initialising(module):
            finder.deferred.add(target)
        else:
            after_exec(target, late=True)


def activate_by_door() -> None:
    """Activation that nobody called for by hand; a revert outlasts it."""
    if not STATE.reverted:
        activate()


def revert() -> None:
    """Undo everything, newest first, and remove the finder."""
    STATE.reverted = True
    sys.meta_path[:] = [found for found in sys.meta_path if not _boot.is_ours(found)]
    for adapter_id in reversed(list(STATE.entries)):
        _withdraw(adapter_id, "disabled", "reverted")
    take_away()
    write_report()


def poll_deferred(deferred: set[str]) -> None:
    """Patch modules that were half-initialised at activation, as soon as they are complete."""
    for target in list(deferred):
        module = sys.modules.get(target)
        if module is not None and _initialising(module):
            continue
        deferred.discard(target)
        if module is not None:
            after_exec(target, late=True)


def before_exec(name: str) -> None:
    """A target is (re)executed: what was patched in its last life is undone first."""
    for adapter in reversed(for_target(name)):
        entry = STATE.entries.get(adapter.id)
        if entry is not None and entry.in_force:
            _withdraw(adapter.id, "pending", "the module is being reloaded")


def after_exec(name: str, late: bool = False) -> None:
    """A target has executed: decide about each of its adapters and apply those that are needed."""
    module = sys.modules.get(name)  # modules may replace themselves while they execute
    if module is None or STATE.reverted:
        return
    for adapter in for_target(name):
        if STATE.claim(adapter.id):
            try:
                STATE.record(_handle(adapter, module, late))
            finally:
                STATE.release(adapter.id)  # also at a KeyboardInterrupt
            if STATE.reverted:  # by another thread, meanwhile
                _withdraw(adapter.id, "disabled", "reverted")
            STATE.raise_if_strict(adapter)
    write_report()


def import_failed(name: str, error: Exception) -> None:
    """A target's own import raised: adapters that know the reason say so, once."""
    for adapter in for_target(name):
        for patch in adapter.patches:
            if isinstance(patch, OnImportError) and _considered(adapter):
                _say(adapter, resolve(patch.reference)(error, version_texts()))
    write_report()


def provide(name: str) -> ModuleSpec | None:
    """A spec for a module that upstream no longer has, where an adapter provides it."""
    for adapter in for_target(name):
        patch = next((patch for patch in adapter.patches if isinstance(patch, Provide)), None)
        if patch is None:
            continue
        decision = decide(adapter, STATE.switches, STATE.found, None)
        if decision.outcome is None:
            outcome = "untested" if decision.untested else "applied"
            STATE.record(Entry(adapter.id, outcome, decision.reason, decision.conditions))
            return ModuleSpec(name, ProvideLoader(adapter.id, patch.names, partial(_not_provided, adapter.id)))
        STATE.record(Entry(adapter.id, decision.outcome, decision.reason, decision.conditions))
    return None


def _not_provided(adapter_id: str, reason: str) -> None:
    STATE.record(Entry(adapter_id, "failed", reason))


def version_texts() -> Mapping[str, str]:
    """The version text of each upstream that is here."""
    found = {dist: STATE.found(dist) for dist in upstreams()}
    return {dist: what.raw or "unknown" for dist, what in found.items() if not what.missing}


def _handle(adapter: Adapter, module: ModuleType, late: bool) -> Entry:
    """Decide and apply; every error becomes an outcome."""
    try:
        decision = decide(adapter, STATE.switches, STATE.found, module)
        if decision.outcome is not None:
            return Entry(adapter.id, decision.outcome, decision.reason, decision.conditions)
        return _apply(adapter, module, decision, late)
    except CollisionError as error:
        return _trouble(adapter, "collision", error)
    except Exception as error:
        return _trouble(adapter, "failed", error)


def _apply(adapter: Adapter, module: ModuleType, decision: Decision, late: bool) -> Entry:
    if any(isinstance(patch, Provide) for patch in adapter.patches):
        return Entry(adapter.id, "not-needed", f"upstream has {adapter.target}", decision.conditions)
    said = [_run_check(adapter, patch, module) for patch in adapter.patches if isinstance(patch, Check)]
    steps = tuple(commit(prepare(adapter, module)))
    if not steps and not any(said):
        return Entry(adapter.id, "not-needed", "nothing to change here", decision.conditions)
    outcome = "untested" if decision.untested else "late" if late else "applied"
    reason = decision.reason + ("; the target was imported before activation" if late else "")
    return Entry(adapter.id, outcome, reason, decision.conditions, steps)


def _run_check(adapter: Adapter, check: Check, module: ModuleType) -> str | None:
    text: str | None = resolve(check.reference)(module, version_texts())
    _say(adapter, text)
    return text


def _say(adapter: Adapter, text: str | None) -> None:
    if text:
        warn_once(f"{text} [{adapter.id}; VERL_COMPAT_DISABLE={adapter.id} silences]")


def _trouble(adapter: Adapter, outcome: str, error: Exception) -> Entry:
    versions = ", ".join(f"{dist} {STATE.found(dist).raw}" for dist in adapter.applies)
    warn_once(
        f"adapter {adapter.id} was not applied to {adapter.target} ({versions}): {type(error).__name__}: {error}. "
        f"See {adapter.links[0] if adapter.links else 'the README'}; VERL_COMPAT_DISABLE={adapter.id} silences this."
    )
    return Entry(adapter.id, outcome, f"{type(error).__name__}: {error}")


def _considered(adapter: Adapter) -> bool:
    """Whether an adapter whose target could not be imported applies by switches and versions."""
    return decide(adapter, STATE.switches, STATE.found, None).outcome in (None, "pending")


def _withdraw(adapter_id: str, outcome: str, reason: str) -> None:
    entry = STATE.entries.get(adapter_id)
    refused = next((text for step in entry.steps if (text := _refusal(step))), None) if entry is not None else None
    if refused:
        STATE.amend(adapter_id, reason=f"not undone: {refused}")
        warn_once(f"{adapter_id} was not undone: {refused}")
        return
    for trouble in undo(STATE.withdraw(adapter_id, outcome, reason)):
        warn_once(f"{adapter_id}: {trouble}; it was left as it is")


def _refusal(step: Any) -> str | None:
    return step.refusal() if isinstance(step, Later) else None


def _initialising(module: Any) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))
