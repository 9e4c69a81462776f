"""Single changes to modules and classes: each is made once and taken back exactly."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

ABSENT: Any = object()


class Step(Protocol):
    """One change that can be made and taken back."""

    def do(self) -> None:
        """Make the change."""

    def undo(self) -> str | None:
        """Take it back; a text says what could not be."""


@dataclass
class Gate:
    """Lets a wrapper that somebody else wrapped again fall silent when it cannot be removed."""

    open: bool = True


@dataclass
class SetSlot:
    """Bind a name in the ``__dict__`` of a module or class."""

    owner: Any
    name: str
    new: Any
    gate: Gate | None = None
    old: Any = field(default=ABSENT)

    def do(self) -> None:
        """Bind the name, remembering the slot itself (not what inheritance shows)."""
        self.old = vars(self.owner).get(self.name, ABSENT)
        setattr(self.owner, self.name, self.new)

    def undo(self) -> str | None:
        """Restore the slot if it still is ours."""
        if self.gate is not None:
            self.gate.open = False
        if vars(self.owner).get(self.name, ABSENT) is not self.new:
            return f"{label(self.owner)}.{self.name} was changed by somebody else since"
        if self.old is ABSENT:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, self.old)
        return None


@dataclass
class Backfill:
    """Consumers that bound a module-level name early get the new object; all of them get the old one back.

    Also those that bound the new one by name later, and those that still hold the original of the
    module's life before a reload.
    """

    consumers: tuple[str, ...]
    name: str
    old: Any
    new: Any
    earlier: list[Any]

    def do(self) -> None:
        """Exchange it where the original is still held."""
        self._exchange((self.old, *self.earlier), self.new)
        if not any(known is self.old for known in self.earlier):
            self.earlier.append(self.old)

    def undo(self) -> str | None:
        """Put the original back where ours is held."""
        self._exchange((self.new,), self.old)
        return None

    def _exchange(self, held: tuple[Any, ...], given: Any) -> None:
        for consumer in self.consumers:
            module = sys.modules.get(consumer)
            if module is not None and any(vars(module).get(self.name, ABSENT) is thing for thing in held):
                setattr(module, self.name, given)


@dataclass
class AddMembers:
    """Add members to one set of a class-level table."""

    table: Any
    key: str
    members: tuple[str, ...]
    added: set[str] = field(default_factory=set)

    def do(self) -> None:
        """Add what is not there yet."""
        self.added = set(self.members) - self.table[self.key]
        self.table[self.key].update(self.added)

    def undo(self) -> str | None:
        """Take out what was added."""
        self.table[self.key].difference_update(self.added)
        return None


def commit(steps: Iterable[Step]) -> list[Step]:
    """Make all changes; if one fails, take back those before it and raise."""
    done: list[Step] = []
    try:
        for step in steps:
            step.do()
            done.append(step)
    except BaseException:
        undo(done)
        raise
    return done


def undo(steps: Iterable[Step]) -> list[str]:
    """Take changes back, last first; returns what could not be restored."""
    return [trouble for step in reversed(list(steps)) if (trouble := _undo_one(step))]


def _undo_one(step: Step) -> str | None:
    try:
        return step.undo()
    except Exception as error:  # must not keep other changes in place
        return f"{label(type(step))} raised {type(error).__name__}: {error}"


def label(owner: Any) -> str:
    """What a module, class or function is called in a message."""
    return str(getattr(owner, "__qualname__", None) or getattr(owner, "__name__", repr(owner)))
