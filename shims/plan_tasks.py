"""Conversion tasks, kept without keeping the model alive.

A task of Megatron-Bridge (a frozen dataclass) holds its module and parameter.  A kept plan
holds the module weakly, the parameter by its slot (a weak reference would keep torch from
swapping it), and puts real tasks together again for each export; what is expensive, the
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

_CONFIG_KEY = "verl_compat:config"
# Mappings that broadcast their module's configuration on each export without a cache key
# (Megatron-Bridge 0.3.0 to 0.6.2, models/conversion/param_mapping.py): Mamba and gated delta net.
_KEYLESS = frozenset({"MambaInProjMapping", "ChunkedMapping", "GDNLinearMapping", "GDNLinearMappingSeparate"})


@dataclass(frozen=True)
class WeakTask:
    """A ``WeightConversionTask`` whose module is held weakly, and whose parameter is read from its slot."""

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
    """Hold ``task`` without its module and parameter.

    Raises:
        UnplacedError: the parameter hangs on no module of the model.
    """
    values = dict(vars(task))
    references = (("megatron_module", watch.reference), ("param_weight", watch.tensor))
    weak = tuple((name, refer(values.pop(name))) for name, refer in references if values.get(name) is not None)
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
