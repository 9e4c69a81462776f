"""What a conversion plan depends on, taken when it is made and checked before each reuse.

A plan (Megatron-Bridge's list of conversion tasks and the caches inside their mappings)
names modules, parameters and buffers of one model, their shapes and dtypes, and process
groups.  :func:`take` records all of that; :func:`difference` compares it with the model as
it is now, streaming, without building a second record.

Objects are compared by identity.  Identities alone could lie, since a freed object's
address is reused, so each recorded object is also watched by a weak reference: once one of
them is gone, the record is void (:attr:`Watch.gone`).  Nothing here keeps a model alive.

Values are not looked at: an optimizer step, ``param.data = ...`` of the same shape and dtype,
and moving storage between devices leave the fingerprint as it is, because the tasks hold the
parameter objects and Bridge allocates its receive buffers anew on each export.
"""

from __future__ import annotations

import operator
import os
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, compress, repeat
from typing import Any

_SCALARS = (bool, int, str, type(None))
_GROUP_FIELDS = ("pp", "tp", "ep", "expt_tp")
_GROUP_GETTERS = (
    "get_pipeline_model_parallel_group",
    "get_tensor_model_parallel_group",
    "get_expert_model_parallel_group",
    "get_expert_tensor_parallel_group",
)
_MAPPINGS = "megatron.bridge.models.conversion.param_mapping"
_QUANT_SWITCH = "ENABLE_BRIDGE_QUANT_MAPPING"


class Watch:
    """Weak references to objects, which remember whether any of them has gone."""

    def __init__(self) -> None:
        self.gone = False
        self._references: dict[int, weakref.ref[Any]] = {}
        self._held: list[Any] = []

    def _mark(self, _reference: weakref.ref[Any]) -> None:
        self.gone = True

    def reference(self, target: Any) -> Callable[[], Any]:
        """A callable that gives ``target`` back, or None once it has been freed.

        What cannot be referenced weakly is held; such things are small (a configuration
        with ``__slots__``), never modules or tensors.
        """
        known = self._references.get(id(target))
        if known is None:
            try:
                known = weakref.ref(target, self._mark)
            except TypeError:
                self._held.append(target)
                return lambda: target
            self._references[id(target)] = known
        return known

    def add(self, targets: Iterable[Any]) -> None:
        """Watch all of ``targets``."""
        for target in targets:
            self.reference(target)


@dataclass
class Walk:
    """A model's modules, breadth first, each once, with what hangs on them.

    Attributes:
        modules: the modules, the chunks first.
        tensors: parameters and buffers that are not None.
        adapters: modules registered under the name ``adapter`` (LoRA and its kin).
    """

    modules: list[Any]
    tensors: list[Any]
    adapters: list[Any]


def walk(chunks: Sequence[Any]) -> Walk:
    """Visit all modules below ``chunks`` (one chunk per virtual pipeline stage)."""
    modules, adapters = list(chunks), []
    seen = {id(None), *map(id, modules)}
    for module in modules:
        children = vars(module)["_modules"]
        new = {id(child): child for child in children.values() if id(child) not in seen}
        seen.update(new)
        modules.extend(new.values())
        if children.get("adapter") is not None:
            adapters.append(children["adapter"])
    tables = [vars(module)[name] for name in ("_parameters", "_buffers") for module in modules]
    tensors = [tensor for table in tables for tensor in table.values() if tensor is not None]
    return Walk(modules, tensors, adapters)


def _adapter_facts(adapters: Iterable[Any]) -> list[tuple[Any, ...]]:
    """What adapter tasks copy from their modules, besides the weights."""
    names = ("alpha", "dim", "input_is_parallel", "base_linear_is_parallel")
    owners = [owner for adapter in adapters for owner in (adapter, *vars(adapter)["_modules"].values())]
    return [tuple(vars(owner).get(name) for name in names) for owner in owners if owner is not None]


def quantised(found: Walk) -> bool:
    """True when a parameter or buffer is of a tensor class that holds packed or scaled data.

    Plain tensors, parameters and DTensors are not; Transformer Engine's quantised tensors,
    ModelOpt's and torchao's wrappers are: what a task takes from them is not static.
    """
    plain = {"Tensor", "Parameter", "Buffer", "DTensor", "UninitializedParameter", "UninitializedBuffer"}
    return any(
        cls.__name__ not in plain or not cls.__module__.startswith("torch") for cls in set(map(type, found.tensors))
    )


def _scalars(owner: Any, depth: int = 1) -> dict[str, Any]:
    """Names, flags and sizes of a configuration; floats, callables and tables are left out.

    Schedules write floats into configurations while training; no mapping reads one.
    """
    values: dict[str, Any] = {}
    for name, value in getattr(owner, "__dict__", {}).items():
        if isinstance(value, _SCALARS) or type(value).__name__ == "dtype":
            values[name] = value
        elif depth and type(value).__name__.endswith("Config") and hasattr(value, "__dict__"):
            values[name] = _scalars(value, depth - 1)
    return values


def process_groups(chunks: Sequence[Any]) -> list[Any]:
    """The groups that an export of ``chunks`` communicates over; None where one is missing.

    In the order pipeline, tensor, expert, expert-tensor parallel: those of the model's own
    ``pg_collection`` if it has one, followed by megatron-core's global ones.
    """
    chunk: Any = chunks[0] if chunks else None
    while "module" in getattr(chunk, "_modules", ()):  # DDP, Float16Module and other wrappers
        chunk = chunk.module
    own = getattr(chunk, "pg_collection", None)
    groups = [getattr(own, name, None) for name in _GROUP_FIELDS] if own is not None else []
    state = sys.modules.get("megatron.core.parallel_state")
    for name in _GROUP_GETTERS if state is not None else ():
        try:
            groups.append(getattr(state, name)())
        except (AssertionError, AttributeError):
            groups.append(None)
    return groups


def _surroundings(configs: Iterable[Any], adapters: list[Any], pretrained: Any, extra: Any) -> dict[str, Any]:
    """What a plan depends on besides modules and tensors; compared by value."""
    mappings = sys.modules.get(_MAPPINGS)
    registry = getattr(getattr(mappings, "AutoMapping", None), "_MODULE_TYPE_REGISTRY", {})
    return {
        "configuration": [_scalars(config) for config in configs],
        "adapters": _adapter_facts(adapters),
        "Hugging Face model": (_scalars(pretrained), _scalars(getattr(pretrained, "config", None))),
        "module types": {kind: frozenset(names) for kind, names in registry.items()},
        "export options": (*extra, os.environ.get(_QUANT_SWITCH)),
    }


_TABLES = ("_modules", "_parameters", "_buffers")


class _State:
    """The model as it is now, from its distinct modules and tensors, read table by table.

    Nearly all of it runs in C, some dozen nanoseconds per item; most tables are empty and
    are looked at once.
    """

    def __init__(self, modules: list[Any], tensors: list[Any]) -> None:
        self._modules, self._tensors = modules, tensors
        self._states = list(map(vars, modules))
        self._tables = [list(map(operator.itemgetter(name), self._states)) for name in _TABLES]
        self._filled = [list(filter(None, tables)) for tables in self._tables]

    def values(self) -> Iterator[tuple[str, list[Any]]]:
        """What is compared by value: names and numbers of things on each module, classes, shapes, dtypes.

        With the same objects in the same order (:meth:`slots`) they mean an equal tree, so no
        traversal is needed to check.
        """
        states = self._states
        for tables, filled in zip(self._tables, self._filled, strict=True):
            yield "structure", list(compress(range(len(tables)), tables))
            yield "structure", list(map(len, filled))
            yield "structure", list(chain.from_iterable(filled))
        owners = compress(states, self._tables[_TABLES.index("_buffers")])
        yield "structure", [frozenset(state["_non_persistent_buffers_set"]) for state in owners]
        yield "structure", [state["layer_number"] for state in states if "layer_number" in state]
        yield "module classes", list(map(type, self._modules))
        yield "tensor classes", list(map(type, self._tensors))
        yield "shapes", list(map(operator.attrgetter("shape"), self._tensors))
        yield "dtypes", list(map(operator.attrgetter("dtype"), self._tensors))

    def configs(self) -> list[Any]:
        """The ``config`` of each module that has one, else None."""
        get: Callable[..., Any] = dict.get
        return list(map(get, self._states, repeat("config")))

    def slots(self) -> Iterator[tuple[str, Iterable[Any]]]:
        """What is compared by identity: the objects that hang on the modules, None included.

        Not by ``id()``: making the numbers costs ten times as much as comparing the objects.
        """
        for filled in self._filled:
            yield "modules or parameters", chain.from_iterable(map(dict.values, filled))
        yield "configuration objects", self.configs()


References = list[Callable[[], Any]]


@dataclass
class Fingerprint:
    """Record of what a plan was made for; see :func:`take` and :func:`difference`.

    ``modules``, ``tensors`` and ``configs`` are the distinct objects; ``slots`` pick out of these
    lists, one after the other and a None, what hangs where.
    """

    watch: Watch
    chunks: list[int]
    modules: References
    tensors: References
    configs: References
    adapters: References
    slots: list[Callable[[list[Any]], tuple[Any, ...]]]
    values: list[list[Any]]
    surroundings: dict[str, Any]
    groups: list[Any]
    pretrained: Callable[[], Any]


def take(chunks: Sequence[Any], pretrained: Any, extra: tuple[Any, ...], watch: Watch | None = None) -> Fingerprint:
    """Record ``chunks`` and what else a plan for them depends on.

    Args:
        chunks: the model as given to the export, one module per virtual pipeline stage.
        pretrained: the bridge's ``hf_pretrained``.
        extra: export options, compared by value.
        watch: where to watch the objects; a plan's own watch voids the record too when
            something that only the plan refers to is freed.
    """
    found = walk(chunks)
    watch = watch or Watch()
    tensors = _distinct(found.tensors)
    state = _State(found.modules, tensors)
    configs = [config for config in _distinct(state.configs()) if config is not None]
    place = {id(thing): index for index, thing in enumerate(chain(found.modules, tensors, configs))}

    def weak(targets: Iterable[Any]) -> References:
        return [watch.reference(target) for target in targets]

    return Fingerprint(
        watch=watch,
        chunks=list(map(id, chunks)),
        modules=weak(found.modules),
        tensors=weak(tensors),
        configs=weak(configs),
        adapters=weak(found.adapters),
        slots=[_picker(place.get(id(thing), -1) for thing in things) for _, things in state.slots()],
        values=[values for _, values in state.values()],
        surroundings=_surroundings(configs, found.adapters, pretrained, extra),
        groups=process_groups(chunks),
        pretrained=watch.reference(pretrained),
    )


def _picker(positions: Iterable[int]) -> Callable[[list[Any]], tuple[Any, ...]]:
    return operator.itemgetter(*positions, -1, -1)  # of fewer than two positions it would give no tuple


def _distinct(things: Iterable[Any]) -> list[Any]:
    return list({id(thing): thing for thing in things}.values())


def difference(old: Fingerprint, chunks: Sequence[Any], pretrained: Any, extra: tuple[Any, ...]) -> str | None:
    """What has changed since ``old`` was taken, in words; None when nothing has."""
    if old.watch.gone:
        return "modules or parameters"
    if old.pretrained() is not pretrained:
        return "Hugging Face model"
    if old.chunks != list(map(id, chunks)):
        return "model chunks"
    groups = process_groups(chunks)
    if len(groups) != len(old.groups) or not all(map(operator.is_, groups, old.groups)):
        return "process groups"
    modules, tensors, configs, adapters = (
        [reference() for reference in references]
        for references in (old.modules, old.tensors, old.configs, old.adapters)
    )
    state = _State(modules, tensors)
    # Values before slots: with equal numbers of things on each module the slots line up.
    for (name, values), recorded in zip(state.values(), old.values, strict=True):
        if values != recorded:
            return name
    objects = [*modules, *tensors, *configs, None]
    for (name, things), pick in zip(state.slots(), old.slots, strict=True):
        if not all(map(operator.is_, things, pick(objects))):
            return name
    now = _surroundings(configs, adapters, pretrained, extra)
    return next((name for name, value in old.surroundings.items() if now[name] != value), None)
