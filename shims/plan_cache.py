"""Plan Megatron-Bridge exports once per model instead of once per weight sync.

Megatron-Bridge (every release from 0.3.0) makes its conversion plan anew for each
``export_hf_weights`` and ``export_adapter_weights``: a walk over the model, and with pipeline
parallelism one or more object collectives per parameter.  verl PR #7348 measured 12.5 of
20.5 s per step for them on 32 GPUs.  The adapter ``bridge_plan_cache`` puts
:func:`export_hf_weights` and :func:`export_adapter_weights` around AutoBridge's methods of
these names; :func:`wrap` does the same for one bridge.

The stream that comes out is Bridge's own in every respect: names, order, shapes, dtypes,
values, errors, laziness.  See docs/plan-cache.md for what is checked before a plan is reused.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from verl_compat.shims.plan_stats import COUNTERS, EXEMPT, Stats
from verl_compat.shims.plan_store import STORE
from verl_compat.shims.plan_stream import Request, cached, is_cached, streaming_bridge, warn_once
from verl_compat.shims.plan_verl import RoutedTasks

__all__ = ["EXEMPT", "Stats", "clear", "disabled", "reset_stats", "stats", "wrap"]

_WEIGHTS = ("bridge", "model", "cpu", "show_progress", "conversion_tasks", "merge_adapter_weights", "weight_dtype")
_ADAPTERS = ("bridge", "model", "cpu", "show_progress", "exclude_adapter_base_prefixes")
_PREFIXES = "exclude_adapter_base_prefixes"
_disabled = 0
_disabled_lock = threading.Lock()
_calling = threading.local()


def stats() -> Stats:
    """What the cache did in this process so far."""
    return COUNTERS.read(entries=len(STORE))


def reset_stats() -> None:
    """Set the counters to zero; plans stay."""
    COUNTERS.reset()


def clear(model: Any = None) -> None:
    """Drop the plans of ``model`` (a chunk or a list of chunks), or all; the next export plans anew.

    Enough on one rank: its peers then plan anew with it.
    """
    STORE.clear(model)


@contextmanager
def disabled() -> Iterator[None]:
    """Leave exports that are asked for inside this context to Bridge alone, in this process.

    Kept plans stay.  The ranks still vote, so that a context on one rank only is no hang:
    then all of them plan anew.
    """
    global _disabled
    with _disabled_lock:
        _disabled += 1
    try:
        yield
    finally:
        with _disabled_lock:
            _disabled -= 1


def export_hf_weights(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Wrapper of ``AutoBridge.export_hf_weights`` (same arguments, same result).

    ``conversion_tasks=`` of the caller, and FP8, are passed through untouched; see
    :data:`EXEMPT`.
    """
    given = dict(zip(_WEIGHTS, args, strict=False)) | kwargs
    tasks = given.get("conversion_tasks")
    token = None
    if isinstance(tasks, RoutedTasks):
        token, tasks = tasks, None
        args, kwargs = _without_tasks(args, kwargs)
    stream, nested = _call(original, args, kwargs)
    if nested:
        return stream
    bridge = given.get("bridge")
    export_dtype = getattr(bridge, "export_weight_dtype", None)
    if tasks is not None:
        return _exempt("modelopt" if _has_hooks(tasks) else "caller's tasks", stream)
    if export_dtype == "fp8":
        return _exempt("fp8", stream)
    merge = bool(given.get("merge_adapter_weights", True))
    mode = ("weights", merge, str(given.get("weight_dtype")), str(export_dtype))
    return _serve(stream, bridge, given.get("model"), mode, token)


def export_adapter_weights(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Wrapper of ``AutoBridge.export_adapter_weights`` (same arguments, same result)."""
    given = dict(zip(_ADAPTERS, args, strict=False)) | kwargs
    prefixes = given.get(_PREFIXES)
    if prefixes is not None:  # may be an iterator: read once, here
        prefixes = tuple(prefixes)
        if _PREFIXES in kwargs:
            kwargs[_PREFIXES] = prefixes
        else:
            args = (*args[: _ADAPTERS.index(_PREFIXES)], prefixes)
    stream, nested = _call(original, args, kwargs)
    if nested:
        return stream
    return _serve(stream, given.get("bridge"), given.get("model"), ("adapters", prefixes or ()), None)


def count_quant_export(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Wrapper of ``AutoBridge.export_hf_weights_quant`` (Bridge >= 0.5): counted, never kept."""
    return _exempt("quant", original(*args, **kwargs))


def wrap(bridge: Any) -> Any:
    """A transparent proxy of one AutoBridge whose exports plan once.

    For people who do not want the adapter for all bridges (``VERL_COMPAT_DISABLE=bridge_plan_cache``);
    with the adapter on, it makes no difference.

    Raises:
        TypeError: ``bridge`` is no AutoBridge of megatron.bridge.
    """
    from verl_compat.shims.plan_proxy import proxy

    return proxy(bridge)


def _call(original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, bool]:
    """Bridge's own stream, and whether this call is inside another one of ours (a proxy's)."""
    nested = getattr(_calling, "inside", False)
    _calling.inside = True
    try:
        return original(*args, **kwargs), nested
    finally:
        _calling.inside = nested


def _serve(stream: Any, bridge: Any, model: Any, mode: tuple[Any, ...], token: Any) -> Any:
    streaming = streaming_bridge(stream)
    chunks = list(model) if isinstance(model, (list, tuple)) else [model]
    if is_cached(stream):
        return stream
    if streaming is None:
        warn_once(f"the export of {type(bridge).__name__} is no generator of a Bridge object: plans are not kept")
    if streaming is None or not chunks or not _can_be_kept(bridge, chunks[0]):
        return _exempt("unknown stream", stream)
    return cached(stream, streaming, Request(bridge, chunks, mode, token, disabled=_disabled > 0))


def _can_be_kept(bridge: Any, chunk: Any) -> bool:
    """Both can be keys of a weak table."""
    return all(hasattr(thing, "__weakref__") and type(thing).__hash__ is not None for thing in (bridge, chunk))


def _exempt(mode: str, stream: Any) -> Any:
    COUNTERS.exempt[mode] += 1
    return stream


def _has_hooks(tasks: Any) -> bool:
    """True for tasks of Bridge 0.6's ModelOpt plan."""
    return isinstance(tasks, list) and any(getattr(task, "export_hook", None) is not None for task in tasks)


def _without_tasks(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    position = _WEIGHTS.index("conversion_tasks")
    if len(args) > position:
        return (*args[:position], None, *args[position + 1 :]), kwargs
    return args, {**kwargs, "conversion_tasks": None}
