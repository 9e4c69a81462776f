"""One export: check, vote, then stream with a kept plan or with a new one that is kept.

Bridge's export gives a generator of its streaming method; its ``self`` is a Bridge object
made for this export alone, which asks itself for its plans (``build_conversion_tasks``,
``build_adapter_conversion_tasks``).  Those two questions are answered here, by attributes of
that object, from the first ``next()`` on: nothing shared is patched, and the export stays as
lazy as it was.  Since Bridge's own planning code runs at each miss, with all overrides of its
subclasses, a kept plan is what that release of Bridge planned, faults included.
"""

from __future__ import annotations

import inspect
import logging
import sys
import time
import zlib
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from types import GeneratorType
from typing import Any

from verl_compat.shims import plan_consensus, plan_fingerprint, plan_state, plan_tasks
from verl_compat.shims.plan_consensus import Ballot
from verl_compat.shims.plan_stats import COUNTERS
from verl_compat.shims.plan_store import STORE, Entry, Mode

logger = logging.getLogger("verl_compat.plan_cache")
_QUESTIONS = ("build_conversion_tasks", "build_adapter_conversion_tasks")
_warned: set[str] = set()


@dataclass(frozen=True)
class Request:
    """An export as asked for.

    Attributes:
        bridge: the AutoBridge.
        chunks: the model, one module per virtual pipeline stage.
        mode: everything that selects a plan besides bridge and model.
        token: object that the caller replaces to have the plan made anew, or None.
        disabled: asked for inside ``disabled()``.
    """

    bridge: Any
    chunks: list[Any]
    mode: Mode
    token: Any = None
    disabled: bool = False

    @property
    def pretrained(self) -> Any:
        """The bridge's Hugging Face model or configuration."""
        return getattr(self.bridge, "hf_pretrained", None)

    @cached_property
    def groups(self) -> list[Any]:
        """The groups that the export communicates over."""
        return plan_fingerprint.process_groups(self.chunks)

    @property
    def number(self) -> int:
        """The mode as a number, equal in all processes."""
        return zlib.crc32(repr(self.mode).encode())


def streaming_bridge(stream: Any) -> Any:
    """The Bridge object behind an export's generator; None if it is something else.

    Bridge 0.6 decorates its streaming method with ``torch.no_grad()``, whose generator holds
    the object as its first argument.
    """
    if not isinstance(stream, GeneratorType):
        return None
    names = inspect.getgeneratorlocals(stream)
    for found in (names.get("self"), *names.get("args", ())[:1]):
        if all(hasattr(found, name) for name in _QUESTIONS):
            return found
    return None


def is_cached(stream: Any) -> bool:
    """True for a generator of :func:`cached`."""
    return isinstance(stream, GeneratorType) and stream.gi_code is cached.__code__


def cached(stream: Iterator[Any], streaming: Any, request: Request) -> Generator[Any, Any, None]:
    """The items of ``stream``, with plans from the store or kept there afterwards."""
    session = _begin(streaming, request)
    try:
        yield from stream
        session.finish()
    finally:
        session.end()


class Session:
    """An export that Bridge does alone; the base of those with a plan."""

    def finish(self) -> None:
        """The stream has given its last item."""

    def end(self) -> None:
        """The stream is over, complete or not."""


def _begin(streaming: Any, request: Request) -> Session:
    """Decide with the other ranks, and prepare the Bridge object accordingly."""
    started = time.perf_counter()
    entry = STORE.find(request.bridge, request.chunks[0], request.mode)
    view = _inspect(entry, request)
    COUNTERS.check_seconds += time.perf_counter() - started
    ballot = Ballot(hit=view.reason is None, no_adapters=view.no_adapters, mode=request.number)
    shared = _vote(ballot, request)
    if shared is None:
        return Session()
    if shared.hit and isinstance(entry, Entry):
        COUNTERS.hits += 1
        return _Reuse(streaming, entry)
    if view.exempt is not None:
        COUNTERS.exempt[view.exempt] += 1
        if view.exempt == "quantised parameters":
            STORE.put(request.bridge, request.chunks[0], request.mode, view.exempt)
        return Session()
    reason = view.reason or "a peer rank"
    if not shared.agreed_mode:
        reason = "ranks differ in mode"
        warn_once(
            f"ranks of one export do different kinds of it (here {request.mode}): planning anew, as Bridge does alone"
        )
    COUNTERS.reasons[reason] += 1
    return _Plan(streaming, request, skip_inventory=shared.no_adapters and shared.agreed_mode)


@dataclass(frozen=True)
class _View:
    """What this rank sees before the vote.

    Attributes:
        reason: why a kept plan cannot be used; None if it can.
        exempt: the exempt mode, if it is one.
        no_adapters: the model has no adapter modules.
    """

    reason: str | None
    exempt: str | None = None
    no_adapters: bool = False


def _inspect(entry: Entry | str, request: Request) -> _View:
    if request.disabled:
        return _View("disabled", exempt="disabled")
    try:
        if plan_consensus.blind(request.groups):
            return _View("no process groups", exempt="no process groups")
        reason = entry if isinstance(entry, str) else _why_not(entry, request)
        if reason is None and isinstance(entry, Entry):
            return _View(None, no_adapters=not entry.fingerprint.adapters)
        found = plan_state.walk(request.chunks)
        exempt = "quantised parameters" if plan_state.quantised(found) else None
        return _View(reason, exempt, no_adapters=exempt is None and not found.adapters)
    except Exception as error:  # fail open: whatever is wrong with the model is Bridge's to say
        warn_once(f"cannot take a fingerprint of {type(request.chunks[0]).__name__} ({error!r}): not cached")
        return _View("unknown stream", exempt="unknown stream")


def _why_not(entry: Entry, request: Request) -> str | None:
    if entry.streams:
        return "unfinished export"
    return plan_fingerprint.difference(entry.fingerprint, request.chunks, request.pretrained, (request.token,))


def _vote(ballot: Ballot, request: Request) -> Ballot | None:
    started = time.perf_counter()
    try:
        shared = plan_consensus.agree(ballot, request.groups)
    except Exception as error:
        warn_once(f"the ranks of an export cannot agree ({error!r}): not cached")
        return None
    if shared is not ballot:
        COUNTERS.votes += 1
        COUNTERS.vote_seconds += time.perf_counter() - started
    return shared


class _Reuse(Session):
    """An export with a kept plan."""

    def __init__(self, streaming: Any, entry: Entry) -> None:
        self._streaming, self._entry = streaming, entry
        entry.streams += 1
        if entry.tasks is not None:
            streaming.build_conversion_tasks = self._tasks
        if entry.adapters is not None:
            streaming.build_adapter_conversion_tasks = self._adapters

    def _tasks(self, *_args: Any, **_kwargs: Any) -> list[Any]:
        vars(self._streaming).update(self._entry.state)
        return [task.strong() for task in self._entry.tasks or ()]

    def _adapters(self, *_args: Any, **_kwargs: Any) -> dict[str, list[Any]]:
        vars(self._streaming).update(self._entry.state)
        return plan_tasks.strengthen_adapters(self._entry.adapters or {})

    def finish(self) -> None:
        self._entry.streams -= 1  # else it stays above zero, and the plan is not used again

    def end(self) -> None:
        _forget_questions(self._streaming)


@dataclass
class _Plan(Session):
    """An export that plans, and whose plan is kept if it comes to its end."""

    streaming: Any
    request: Request
    skip_inventory: bool
    entry: Entry | None = None
    refused: str | None = None
    state: dict[str, Any] = field(default_factory=dict)
    watch: plan_fingerprint.Watch = field(default_factory=plan_fingerprint.Watch)

    def __post_init__(self) -> None:
        request = self.request
        STORE.put(request.bridge, request.chunks[0], request.mode, "unfinished export")
        self._ask_tasks, self._ask_adapters = (getattr(self.streaming, name) for name in _QUESTIONS)
        self.streaming.build_conversion_tasks = self._tasks
        self.streaming.build_adapter_conversion_tasks = self._adapters

    def _tasks(self, *args: Any, **kwargs: Any) -> list[Any]:
        tasks: list[Any] = self._planned(self._ask_tasks, args, kwargs)
        if any(task is None for task in tasks):
            return tasks  # a parameter without a mapping: Bridge refuses it when it comes to it
        if any(getattr(task, "export_hook", None) is not None for task in tasks):
            self.refused = "modelopt"
        plan_tasks.key_config_broadcasts(tasks)
        entry = self._record()
        with self._all_placed():
            entry.tasks = [plan_tasks.weaken(task, self.watch) for task in tasks]
        return tasks

    def _adapters(self, *args: Any, **kwargs: Any) -> dict[str, list[Any]]:
        if self.skip_inventory:
            COUNTERS.inventories_skipped += 1
            by_base: dict[str, list[Any]] = plan_tasks.strengthen_adapters({})
        else:
            by_base = self._planned(self._ask_adapters, args, kwargs)
        entry = self._record() if self.entry is None or not self.skip_inventory else self.entry
        with self._all_placed():
            entry.adapters = plan_tasks.weaken_adapters(by_base, self.watch)
        return by_base

    @contextmanager
    def _all_placed(self) -> Iterator[None]:
        """Where a task's parameter is no parameter of the model (a view, a gathered copy), no plan is kept."""
        try:
            yield
        except plan_fingerprint.UnplacedError:
            self.refused = "derived parameters"
        finally:
            self.watch.placed()

    def _planned(self, ask: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        before = dict(vars(self.streaming))
        started = time.perf_counter()
        answer = ask(*args, **kwargs)
        COUNTERS.planning_seconds += time.perf_counter() - started
        for name, value in vars(self.streaming).items():
            if name not in before or before[name] is not value:
                self.state[name] = value
                if _holds_model(value):
                    self.refused = "bridge state"
        return answer

    def _record(self) -> Entry:
        """The entry, with a fingerprint of now: Bridge sets ``config`` on modules while planning."""
        request = self.request
        fingerprint = plan_fingerprint.take(request.chunks, request.pretrained, (request.token,), self.watch)
        if self.entry is None:
            self.entry = Entry(fingerprint, state=self.state)
        self.entry.fingerprint = fingerprint
        return self.entry

    def finish(self) -> None:
        request = self.request
        if self.refused is not None:
            COUNTERS.exempt[self.refused] += 1
        result = self.entry if self.refused is None else self.refused
        STORE.put(request.bridge, request.chunks[0], request.mode, result or "nothing planned")

    def end(self) -> None:
        _forget_questions(self.streaming)


def _forget_questions(streaming: Any) -> None:
    for name in _QUESTIONS:
        vars(streaming).pop(name, None)


def _holds_model(value: Any) -> bool:
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple, set)) else ()
    return any(isinstance(part, (torch.nn.Module, torch.Tensor)) for part in (value, *inside))


def warn_once(text: str) -> None:
    """One warning per text and process, on rank 0 and on ranks that see something else."""
    if text not in _warned:
        _warned.add(text)
        logger.warning("verl-compat: %s", text)
