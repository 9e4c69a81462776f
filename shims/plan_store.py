"""Where plans are kept: a side table that keeps neither bridge nor model alive.

Nothing is stored on bridge or model objects, so copying, pickling and saving them is as
before.  The table is weak in the bridge and in the model's first chunk; what it holds refers
to neither.
"""

from __future__ import annotations

import os
import threading
import weakref
from dataclasses import dataclass, field
from typing import Any

from verl_compat.shims.plan_fingerprint import Fingerprint
from verl_compat.shims.plan_tasks import WeakPair, WeakTask

MAX_PLANS_PER_MODEL = 8
"""Modes per bridge and model; a caller with ever new options must not fill the memory."""

Mode = tuple[Any, ...]


@dataclass
class Entry:
    """A plan that has served one complete export, so that its mapping caches are filled.

    Attributes:
        fingerprint: what it is valid for.
        tasks: of ``build_conversion_tasks``; None if this mode does not call it.
        adapters: of ``build_adapter_conversion_tasks``; None likewise.
        state: attributes that planning left on the Bridge object.
        streams: exports in progress that use it.  A stream that never ends leaves it above
            zero, and mapping objects with half-filled buffers behind: no reuse then.
    """

    fingerprint: Fingerprint
    tasks: list[WeakTask] | None = None
    adapters: dict[str, list[WeakPair]] | None = None
    state: dict[str, Any] = field(default_factory=dict)
    streams: int = 0


class Store:
    """Plans by bridge, first model chunk and mode; a text in place of a plan says why there is none."""

    def __init__(self) -> None:
        self._plans: weakref.WeakKeyDictionary[Any, weakref.WeakKeyDictionary[Any, dict[Mode, Entry | str]]]
        self.reset()

    def reset(self) -> None:
        """Forget everything; also the lock, which a forked child may inherit locked."""
        self._lock = threading.RLock()
        self._plans = weakref.WeakKeyDictionary()

    def find(self, bridge: Any, chunk: Any, mode: Mode) -> Entry | str:
        """The plan kept for this mode, or why there is none."""
        with self._lock:
            return self._plans.get(bridge, {}).get(chunk, {}).get(mode, "first export")

    def put(self, bridge: Any, chunk: Any, mode: Mode, entry: Entry | str) -> None:
        """Keep a plan, or the reason why there is none, in place of what was there."""
        with self._lock:
            models = self._plans.setdefault(bridge, weakref.WeakKeyDictionary())
            plans = models.setdefault(chunk, {})
            plans.pop(mode, None)
            plans[mode] = entry
            while len(plans) > MAX_PLANS_PER_MODEL:
                del plans[next(iter(plans))]

    def clear(self, model: Any = None) -> None:
        """Drop the plans of one model (its chunks or any of them), or all."""
        with self._lock:
            if model is None:
                self._plans = weakref.WeakKeyDictionary()
                return
            for models in self._plans.values():
                for chunk in model if isinstance(model, (list, tuple)) else [model]:
                    models.pop(chunk, None)

    def __len__(self) -> int:
        with self._lock:
            return sum(
                isinstance(entry, Entry)
                for models in self._plans.values()
                for plans in models.values()
                for entry in plans.values()
            )


STORE = Store()

if hasattr(os, "register_at_fork"):  # a child's process groups are not its parent's
    os.register_at_fork(after_in_child=STORE.reset)
