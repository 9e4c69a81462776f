"""Conversion tasks, kept without keeping the model alive.

A task of Megatron-Bridge (a frozen dataclass) holds its module and parameter.  A kept plan
holds them weakly and puts real tasks together again for each export; what is expensive, the
mapping objects with their caches, is kept as it is.  Mappings hold process groups, names and
copies of configurations from which Bridge has removed callables, but no module.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from verl_compat.shims.plan_fingerprint import Watch

_WEAK = ("megatron_module", "param_weight")
_CONFIG_KEY = "verl_compat:config"
# Mappings that broadcast their module's configuration on each export without a cache key
# (Megatron-Bridge 0.3.0 to 0.6.2, models/conversion/param_mapping.py): Mamba and gated delta net.
_KEYLESS = frozenset({"MambaInProjMapping", "ChunkedMapping", "GDNLinearMapping", "GDNLinearMappingSeparate"})


@dataclass(frozen=True)
class WeakTask:
    """A ``WeightConversionTask`` whose module and parameter are held weakly."""

    cls: type
    values: dict[str, Any]
    weak: tuple[tuple[str, Callable[[], Any]], ...]

    def strong(self) -> Any:
        """The task as Bridge made it."""
        task: Any = object.__new__(self.cls)
        task.__dict__.update(self.values)
        for name, reference in self.weak:
            task.__dict__[name] = reference()
        return task


@dataclass(frozen=True)
class WeakPair:
    """An ``AdapterWeightConversionTask``: two tasks (LoRA A and B) and the numbers of their adapter."""

    cls: type
    values: dict[str, Any]
    tasks: tuple[tuple[str, WeakTask], ...]

    def strong(self) -> Any:
        """The adapter task as Bridge made it."""
        pair: Any = object.__new__(self.cls)
        pair.__dict__.update(self.values)
        for name, task in self.tasks:
            pair.__dict__[name] = task.strong()
        return pair


def weaken(task: Any, watch: Watch) -> WeakTask:
    """Hold ``task`` without its module and parameter."""
    values = dict(vars(task))
    weak = tuple((name, watch.reference(values.pop(name))) for name in _WEAK if values.get(name) is not None)
    return WeakTask(type(task), values, weak)


def weaken_pair(pair: Any, watch: Watch) -> WeakPair:
    """Hold an adapter task without modules and parameters."""
    values = dict(vars(pair))
    names = [name for name, value in values.items() if hasattr(value, "param_weight")]
    tasks = tuple((name, weaken(values.pop(name), watch)) for name in names)
    return WeakPair(type(pair), values, tasks)


def weaken_adapters(by_base: dict[str, list[Any]], watch: Watch) -> dict[str, list[WeakPair]]:
    """Hold the result of ``build_adapter_conversion_tasks`` without modules and parameters."""
    return {base: [weaken_pair(pair, watch) for pair in pairs] for base, pairs in by_base.items()}


def strengthen_adapters(by_base: dict[str, list[WeakPair]]) -> dict[str, list[Any]]:
    """The opposite of :func:`weaken_adapters`, in the container type that Bridge returns."""
    strong: dict[str, list[Any]] = defaultdict(list)
    for base, pairs in by_base.items():
        strong[base] = [pair.strong() for pair in pairs]
    return strong


def drop_unmapped(tasks: Iterable[Any], global_names: Iterable[str]) -> tuple[list[Any], list[str]]:
    """Tasks without the empty slots, in order, and the names of the parameters that have none.

    ``build_conversion_tasks`` leaves None for a parameter without a mapping, at which every
    release up to 0.6.2 then fails (AttributeError).  The list is global, so pipeline peers
    drop the same slots.

    Args:
        tasks: of ``build_conversion_tasks``.
        global_names: names of all parameters on all pipeline ranks.
    """
    kept = [task for task in tasks if task is not None]
    planned = {task.global_param_name for task in kept}
    return kept, [name for name in global_names if name not in planned]


def key_config_broadcasts(tasks: Iterable[Any]) -> None:
    """Give the keyless configuration broadcasts of Mamba and gated-delta-net mappings a cache key.

    Only these mapping classes, each of which broadcasts one thing, its module's
    configuration; the fingerprint of the plan covers configurations.
    """
    for mapping in _mappings(tasks):
        names = {cls.__name__ for cls in type(mapping).__mro__}
        if names & _KEYLESS and "broadcast_obj_from_pp_rank" not in vars(mapping):
            mapping.broadcast_obj_from_pp_rank = _keyed(mapping)


def _keyed(mapping: Any) -> Callable[..., Any]:
    broadcast = type(mapping).broadcast_obj_from_pp_rank
    reference = weakref.ref(mapping)  # the mapping holds this function: no cycle

    def broadcast_config(obj: Any, cache_key: str | None = None) -> Any:
        return broadcast(reference(), obj, cache_key or _CONFIG_KEY)

    return broadcast_config


def _mappings(tasks: Iterable[Any]) -> Iterator[Any]:
    """Mappings of tasks and those that they delegate to."""
    for task in tasks:
        pending = [task.mapping]
        while pending:
            mapping = pending.pop()
            yield mapping
            for name in ("_tp_mapping", "_mapping"):
                inner = getattr(mapping, "__dict__", {}).get(name)
                if inner is not None:
                    pending.append(inner)
