"""Changes that a shim makes later, when upstream calls it: steps of its adapter like all others."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from verl_compat.log import warn_once
from verl_compat.records import Adapter
from verl_compat.report import write_report
from verl_compat.state import STATE
from verl_compat.steps import ABSENT, Gate, SetSlot, Step, commit, label, undo
from verl_compat.wrapping import MARK, CollisionError, function_of, is_wrapper, wrapped

Wrapping = tuple[Any, str, Callable[..., Any]]
"""Owner, name, and what is called with the original and the call's own arguments."""


@dataclass
class Later:
    """The handle that a factory is given, and one step of its adapter: undone, it takes back what was done with it.

    Attributes:
        adapter: whose entry the changes belong to.
        steps: what was changed so far.
        holds: asked before the adapter is taken back; a text says why that must wait.
    """

    adapter: Adapter
    steps: list[Step] = field(default_factory=list)
    holds: list[Callable[[], str | None]] = field(default_factory=list)

    def wrap(self, owner: Any, name: str, function: Callable[..., Any]) -> bool:
        """Call ``function(original, *args, **kwargs)`` in place of a method from now on; see :meth:`apply`."""
        return self.apply([(owner, name, function)])

    def apply(
        self, wraps: Iterable[Wrapping] = (), values: Iterable[tuple[Any, str, Any]] = (), steps: Iterable[Step] = ()
    ) -> bool:
        """Make all of these changes or none; whether they are in place now.

        Args:
            wraps: methods to wrap; one that this adapter wraps already is left as it is.
            values: owner, name and value of names to bind; one that has the value is left as it is.
            steps: changes of any other kind.

        A method that is not upstream's own code any more is a collision: the outcome of the adapter, a
        warning, and an error in strict mode.

        Raises:
            StrictError: a collision, in strict mode.
            Exception: whatever a change raised; those before it are taken back.
        """
        try:
            todo = [step for wrapping in wraps if (step := self._wrapping(*wrapping)) is not None]
        except CollisionError as error:
            self._collided(error)
            return False
        todo += [SetSlot(owner, name, value) for owner, name, value in values if vars(owner).get(name, ABSENT) != value]
        self.steps += commit([*todo, *steps])
        return True

    def do(self) -> None:
        """Change nothing yet."""

    def undo(self) -> str | None:
        """Take back everything that was done with the handle, newest first."""
        troubles = undo(self.steps)
        self.steps.clear()
        return "; ".join(troubles) or None

    def refusal(self) -> str | None:
        """Why the adapter must not be taken back now."""
        return next((text for hold in self.holds if (text := hold())), None) if self.steps else None

    def _wrapping(self, owner: Any, name: str, function: Callable[..., Any]) -> Step | None:
        raw = inspect.getattr_static(owner, name)
        if getattr(function_of(raw), MARK, None) == self.adapter.id:
            return None
        _recognise(owner, name, raw)
        gate = Gate()
        return SetSlot(owner, name, wrapped(raw, function, gate, self.adapter.id), gate)

    def _collided(self, error: CollisionError) -> None:
        warn_once(
            f"adapter {self.adapter.id} was not completed: {error}. See {self.adapter.links[0]}; "
            f"VERL_COMPAT_DISABLE={self.adapter.id} silences this."
        )
        STATE.amend(self.adapter.id, outcome="collision", reason=f"{type(error).__name__}: {error}")
        write_report()
        STATE.raise_if_strict(self.adapter)


def _recognise(owner: Any, name: str, raw: Any) -> None:
    """A method may be inherited from another file of the same upstream; the file says more than copied names."""
    function = function_of(raw)
    if is_wrapper(function):
        return
    file = getattr(getattr(function, "__code__", None), "co_filename", None)
    home = getattr(function, "__module__", None) or ""
    same = home.partition(".")[0] == owner.__module__.partition(".")[0]
    if file is None or not same or file != getattr(sys.modules.get(home), "__file__", None):
        raise CollisionError(f"{label(owner)}.{name} is already replaced by code of {file or type(function).__name__}")
