"""Asynchronous checkpoint saves of verl on megatron-core: kept until finalised, finalised once.

A save is two things: a process that writes (started by ``schedule_async_request``) and finalize
functions that all ranks run together once every rank has written.  A queue that is dropped in
between loses the second: no ``metadata.json``, no tracker file, a restart from step 0.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

from verl_compat.shims.notices import say_once, setting

_NVRX = "nvidia_resiliency_ext"
_NVRX_CORE = f"{_NVRX}.checkpointing.async_ckpt.core"
_CORE_QUEUE = "megatron.core.dist_checkpointing.strategies.async_utils"
_BASE = "megatron.core.dist_checkpointing.strategies.base"


class AsyncCalls:
    """What ``megatron.core.dist_checkpointing.strategies.base.async_calls`` was before core 0.17.

    One queue per kind of request: megatron-core's own, and nvidia-resiliency-ext's, which core 0.17
    makes by default where that package is installed.
    """

    def __init__(self) -> None:
        self._queues: dict[str, Any] = {}

    def schedule_async_request(self, async_request: Any) -> int:
        """Start writing; all ranks must call it.  Returns the index of the call in its queue."""
        foreign = type(async_request).__module__.startswith(_NVRX)
        index: int = self._queue(_NVRX_CORE if foreign else _CORE_QUEUE).schedule_async_request(async_request)
        return index

    def maybe_finalize_async_calls(self, blocking: bool = False, no_dist: bool = False) -> list[int]:
        """Finalise what has been written (``blocking``: wait for it); all ranks must call it."""
        done: list[int] = []
        for queue in self._queues.values():
            done += queue.maybe_finalize_async_calls(blocking=blocking, no_dist=no_dist)
        return done

    def get_num_unfinalized_calls(self) -> int:
        """How many saves have not been finalised."""
        return sum(queue.get_num_unfinalized_calls() for queue in self._queues.values())

    def close(self, abort: bool = False) -> None:
        """Finalise everything, or (``abort``) stop the writers."""
        for queue in self._queues.values():
            queue.close(abort=abort)

    def _queue(self, module: str) -> Any:
        if module not in self._queues:
            self._queues[module] = importlib.import_module(module).AsyncCallsQueue()
        return self._queues[module]


async_calls = AsyncCalls()

#: Set once a trainer has asked this process to finalise its saves: it asks before each step, so before the first save.
drained = threading.Event()


def kept_calls() -> Any:
    """The queue of this process: core's own where it has one (before 0.17), else :data:`async_calls`."""
    try:
        return getattr(importlib.import_module(_BASE), "async_calls", async_calls)
    except ModuleNotFoundError:
        return async_calls


class KeptRequest:
    """A save request that goes to the kept queue, whichever queue it is handed to.

    verl 0.8 hands it to a queue that it makes for the call and drops.  A queue freezes what it is
    given: that is when the real request is scheduled, and the other queue is left with a no-op.
    """

    def __init__(self, request: Any) -> None:
        self._request = request
        self._noop = request._replace(async_fn=None, async_fn_args=(), finalize_fns=[], preload_fn=None)

    def add_finalize_fn(self, fn: Callable[[], None]) -> None:
        """Run ``fn`` after the finalize functions that are there."""
        self._request.add_finalize_fn(fn)

    def freeze(self) -> Any:
        """Schedule the real request; returns the no-op that the caller's queue may have."""
        kept_calls().schedule_async_request(self._request)
        return self._noop.freeze() if hasattr(self._noop, "freeze") else self._noop

    @property
    def _fields(self) -> tuple[str, ...]:
        fields: tuple[str, ...] = self._request._fields
        return fields


def keep_request(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Around verl 0.8's ``save_dist_checkpointing``: an asynchronous request is returned as a kept one."""
    request = original(*args, **kwargs)
    return request if request is None else KeptRequest(request)


def make_finalizer(module: ModuleType) -> Callable[..., None]:
    """``ActorRolloutRefWorker.async_calls_finalize_fn_exec``, as verl 0.7's worker had it.

    verl's trainer calls it before each step and, blocking, after the last; it is dispatched to all
    ranks.  Nothing happens in processes that have saved nothing.
    """

    def async_calls_finalize_fn_exec(self: Any, blocking: bool = False) -> None:
        drained.set()
        if "megatron.core" in sys.modules:
            kept_calls().maybe_finalize_async_calls(blocking=blocking)

    register: Any = vars(module)["register"]
    dispatched: Callable[..., None] = register(dispatch_mode=vars(module)["Dispatch"].ONE_TO_ALL)(
        async_calls_finalize_fn_exec
    )
    return dispatched


def note_drain(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Around verl 0.7's own ``async_calls_finalize_fn_exec``: this process has a trainer that finalises its saves."""
    drained.set()
    return original(*args, **kwargs)


def finish_save(original: Callable[..., Any], manager: Any, *args: Any, **kwargs: Any) -> Any:
    """Around ``MegatronCheckpointManager.save_checkpoint(self, ...)``: no save is left that nothing would finalise.

    Only verl's PPO trainers finalise, and only the actor's workers.  Anywhere else (supervised
    fine-tuning, a critic in a pool of its own, the trainers of ``verl.trainer.ppo.v1``) the save is
    finalised, blocking and on all ranks, before this returns.
    """
    result = original(manager, *args, **kwargs)
    if setting(manager.checkpoint_config, "async_save", False) and not drained.is_set():
        kept_calls().maybe_finalize_async_calls(blocking=True)
        say_once(
            "verl_async_save_finish",
            "Nothing in this process finalises asynchronous saves (checkpoint.async_save=True), as verl's PPO trainer "
            "does for its actor: each save is finished before save_checkpoint returns. async_save=False says the same.",
        )
    return result


class DistCheckpointing(ModuleType):
    """``megatron.core.dist_checkpointing`` as verl sees it: an asynchronous save picks a strategy that is there."""

    def __init__(self, module: ModuleType) -> None:
        super().__init__(module.__name__)
        self._module = module

    def __getattr__(self, name: str) -> Any:
        if name == "_module":  # not yet set: copying
            raise AttributeError(name)
        return getattr(self._module, name)

    def save(self, *args: Any, **kwargs: Any) -> Any:
        """core's ``save``, with ``async_strategy="mcore"`` where nvidia-resiliency-ext cannot be used."""
        if kwargs.get("async_sharded_save") and "async_strategy" not in kwargs and not nvrx_usable():
            kwargs["async_strategy"] = "mcore"
        return self._module.save(*args, **kwargs)


def with_usable_strategy(module: ModuleType) -> DistCheckpointing:
    """For the name ``dist_checkpointing`` of ``verl.utils.megatron.dist_checkpointing``."""
    return DistCheckpointing(vars(module)["dist_checkpointing"])


def prefers_nvrx(module: ModuleType) -> bool:
    """Whether core's ``save`` takes a strategy and would choose nvidia-resiliency-ext by itself."""
    save = getattr(vars(module).get("dist_checkpointing"), "save", None)
    parameter = inspect.signature(save).parameters.get("async_strategy") if save is not None else None
    return parameter is not None and parameter.default == "nvrx"


def nvrx_usable() -> bool:
    """Whether core itself finds the nvidia-resiliency-ext that it wants."""
    try:
        importlib.import_module("megatron.core.dist_checkpointing.strategies.torch").get_async_strategy("nvrx")
    except (ImportError, AssertionError):
        return False
    return True
