"""The environment switches: ``VERL_COMPAT``, ``..._DISABLE``, ``..._ONLY``, ``..._ENABLE``, ``..._REPORT_DIR``."""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass

from verl_compat import _boot
from verl_compat.adapters import TARGETS
from verl_compat.log import warn_once
from verl_compat.records import Adapter

MODES = ("auto", "off", "strict")


@dataclass(frozen=True)
class Switches:
    """The switches as read from the environment of this process.

    Attributes:
        mode: ``auto``, ``off`` or ``strict``.
        disable: ids and families that are switched off.
        only: when not empty, everything else is switched off.
        enable: ids of adapters that are off by default and were asked for.
    """

    mode: str = "auto"
    disable: frozenset[str] = frozenset()
    only: frozenset[str] = frozenset()
    enable: frozenset[str] = frozenset()

    def why_disabled(self, adapter: Adapter) -> str | None:
        """The reason why an adapter is switched off, or None."""
        names = {adapter.id, adapter.family}
        if self.mode == "off":
            return "VERL_COMPAT=off"
        if names & self.disable:
            return "VERL_COMPAT_DISABLE=" + ",".join(sorted(names & self.disable))
        if self.only and not names & self.only:
            return "not in VERL_COMPAT_ONLY"
        if not adapter.default and adapter.id not in self.enable | self.only:
            return f"off by default; VERL_COMPAT_ENABLE={adapter.id} switches it on"
        return None


def known_ids() -> set[str]:
    """All adapter ids, from the index alone."""
    return {adapter_id for ids in TARGETS.values() for adapter_id in ids}


def read_switches() -> Switches:
    """Read the environment; unknown words give one warning each, with close matches."""
    ids = known_ids()
    words = ids | {adapter_id.partition("_")[0] for adapter_id in ids}
    return Switches(
        mode=read_mode(),
        disable=_read_names("VERL_COMPAT_DISABLE", words),
        only=_read_names("VERL_COMPAT_ONLY", words),
        enable=_read_names("VERL_COMPAT_ENABLE", ids, "adapter id (families cannot be enabled)"),
    )


def read_mode() -> str:
    """``VERL_COMPAT``; anything unknown counts as ``auto``, with one warning."""
    mode = _boot.mode() or "auto"
    if mode in MODES:
        return mode
    if mode in ("1", "true", "yes", "on"):
        return "auto"
    warn_once(f"VERL_COMPAT={mode!r} is not one of {', '.join(MODES)}; going on with auto.{_close(mode, set(MODES))}")
    return "auto"


def _read_names(variable: str, known: set[str], kind: str = "adapter id or family") -> frozenset[str]:
    names = {name.strip() for name in os.environ.get(variable, "").split(",") if name.strip()}
    nothing = variable == "VERL_COMPAT_ONLY" and names and not names & known
    for name in sorted(names - known):
        warn_once(
            f"{variable} names {name!r}, which is no {kind}.{_close(name, known)} `verl-compat list` shows them all."
            + (" So every adapter is off." if nothing else "")
        )
    # an unknown name in ONLY still means "nothing else", so it is kept
    return frozenset(names)


def _close(name: str, known: set[str]) -> str:
    matches = difflib.get_close_matches(name, sorted(known), n=3, cutoff=0.5)
    return f" Did you mean {' or '.join(matches)}?" if matches else ""
