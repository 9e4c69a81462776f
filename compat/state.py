"""What has happened in this process: one entry per adapter, versions found, locks."""

from __future__ import annotations

import os
import sys
import threading
from dataclasses import dataclass, field, replace

from verl_compat.decide import Condition
from verl_compat.records import Adapter
from verl_compat.registry import upstreams
from verl_compat.steps import Step
from verl_compat.switches import Switches, read_switches
from verl_compat.versions import Found, detect


class StrictError(Exception):
    """Strict mode: an adapter is needed here and could not be applied."""


@dataclass(frozen=True)
class Entry:
    """The outcome of one adapter, with its reason and the steps that undo it."""

    id: str
    outcome: str
    reason: str
    conditions: tuple[Condition, ...] = ()
    steps: tuple[Step, ...] = ()

    @property
    def in_force(self) -> bool:
        """Whether patches of the adapter are in place."""
        return bool(self.steps)


@dataclass
class ProcessState:
    """The table of entries; the lock guards the table only and is never held while hooks run."""

    entries: dict[str, Entry] = field(default_factory=dict)
    versions: dict[str, Found] = field(default_factory=dict)
    path: tuple[str, ...] = ()
    lock: threading.Lock = field(default_factory=threading.Lock)
    busy: set[str] = field(default_factory=set)
    children: dict[int, str] = field(default_factory=dict)
    reverted: bool = False
    _switches: Switches | None = None

    @property
    def switches(self) -> Switches:
        """The environment switches, read at first use."""
        if self._switches is None:
            self._switches = read_switches()
        return self._switches

    def found(self, dist: str) -> Found:
        """Detect a distribution, once per process; one that is missing again when ``sys.path`` has changed.

        The folder of a script and a clone that it puts on the path come after the start of the interpreter.
        """
        path = tuple(map(str, sys.path))
        if path != self.path:
            self.path = path
            self.versions = {name: what for name, what in self.versions.items() if not what.missing}
        if dist not in self.versions:
            self.versions[dist] = detect(upstreams()[dist])
        return self.versions[dist]

    def claim(self, adapter_id: str) -> bool:
        """Take an adapter in hand; False when another thread has it or it is in force."""
        with self.lock:
            entry = self.entries.get(adapter_id)
            if adapter_id in self.busy or (entry is not None and entry.in_force):
                return False
            self.busy.add(adapter_id)
            return True

    def record(self, entry: Entry) -> None:
        """Enter an outcome."""
        with self.lock:
            self.entries.pop(entry.id, None)  # the order of entries is the order of undoing
            self.entries[entry.id] = entry

    def release(self, adapter_id: str) -> None:
        """Give up a claim, after its outcome was entered or without one."""
        with self.lock:
            self.busy.discard(adapter_id)

    def withdraw(self, adapter_id: str, outcome: str, reason: str) -> tuple[Step, ...]:
        """Take an adapter's steps out of the table, for undoing."""
        with self.lock:
            entry = self.entries.get(adapter_id)
            if entry is None:
                return ()
            self.entries[adapter_id] = replace(entry, outcome=outcome, reason=reason, steps=())
            return entry.steps

    def amend(self, adapter_id: str, **fields: str) -> None:
        """Change the outcome or the reason of an entry that stays in force."""
        with self.lock:
            entry = self.entries.get(adapter_id)
            if entry is not None:
                self.entries[adapter_id] = replace(entry, **fields)  # type: ignore[arg-type]

    def raise_if_strict(self, adapter: Adapter) -> None:
        """In strict mode a needed adapter that is not in place is an error."""
        entry = self.entries.get(adapter.id)
        if entry is not None and self.switches.mode == "strict" and entry.outcome in ("failed", "collision"):
            raise StrictError(f"{adapter.id} is needed for {adapter.target} and was not applied: {entry.reason}")

    def forget_switches(self) -> None:
        """Read the environment and detect versions anew at the next use."""
        self._switches = None
        self.versions.clear()


STATE = ProcessState()


def _after_fork() -> None:
    STATE.lock = threading.Lock()  # another thread may have held it when the process forked
    STATE.busy.clear()
    STATE.children.clear()


os.register_at_fork(after_in_child=_after_fork)
