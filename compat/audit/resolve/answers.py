"""What became of a dotted path."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

State = Literal["found", "missing", "undecided"]


@dataclass(frozen=True)
class Answer:
    """What became of a dotted path.

    Attributes:
        state: ``found``, ``missing`` or ``undecided``.
        obj: griffe's object, aliases followed; None when found but not looked into.
        path: the object's own path.
        missing: the first part that is missing.
        owner: kind of thing that lacks it (``module``, ``class``, ``function``).
        reason: why it is undecided.
        ambiguous: it is defined more than once, under conditions.
    """

    state: State
    obj: Any = None
    path: str = ""
    missing: str = ""
    owner: str = ""
    reason: str = ""
    ambiguous: bool = False
