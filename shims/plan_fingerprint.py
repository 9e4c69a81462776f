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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
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
    """One pass over a model's modules, breadth first, each module once.

    Attributes:
        modules: the modules.
        tensors: parameters and buffers that are not None.
        layout: names of children, parameters and buffers, with the position of their
            owner, the number of non-persistent buffers and ``layer_number``.
        links: ``id`` of each child, parameter and buffer, None included.
        configs: the distinct ``config`` objects, in order of first appearance.
        adapters: what tasks copy from adapter modules (``alpha``, ``dim``, parallelism).
    """

    modules: list[Any]
    tensors: list[Any] = field(default_factory=list)
    layout: list[Any] = field(default_factory=list)
    links: list[int] = field(default_factory=list)
    configs: list[Any] = field(default_factory=list)
    adapters: list[tuple[Any, ...]] = field(default_factory=list)
    has_adapters: bool = False


def walk(chunks: Sequence[Any]) -> Walk:
    """Visit all modules below ``chunks`` (one chunk per virtual pipeline stage)."""
    found = Walk(modules=list(chunks))
    modules, layout, links = found.modules, found.layout, found.links
    seen = {id(None), *map(id, modules)}
    known_configs: set[int] = set()
    for position, module in enumerate(modules):
        state = module.__dict__
        children = state["_modules"]
        if children:
            layout.append(position)
            layout.extend(children)
            links.extend(map(id, children.values()))
            new = {id(child): child for child in children.values() if id(child) not in seen}
            seen.update(new)
            modules.extend(new.values())
            if "adapter" in children:
                found.has_adapters = True
                found.adapters.extend(_adapter_facts(children["adapter"]))
        parameters = state["_parameters"]
        if parameters:
            layout.append(position)
            layout.extend(parameters)
            links.extend(map(id, parameters.values()))
            found.tensors.extend(parameters.values())
        buffers = state["_buffers"]
        if buffers:
            layout.append(position)
            layout.extend(buffers)
            layout.append(len(state["_non_persistent_buffers_set"]))
            links.extend(map(id, buffers.values()))
            found.tensors.extend(buffers.values())
        if "layer_number" in state:
            layout.append(state["layer_number"])
        config = state.get("config")
        if config is not None and id(config) not in known_configs:
            known_configs.add(id(config))
            found.configs.append(config)
    found.tensors = [tensor for tensor in found.tensors if tensor is not None]
    return found


def _adapter_facts(adapter: Any) -> list[tuple[Any, ...]]:
    names = ("alpha", "dim", "input_is_parallel", "base_linear_is_parallel")
    owners = [adapter, *vars(adapter).get("_modules", {}).values()] if adapter is not None else []
    return [tuple(vars(owner).get(name) for name in names) for owner in owners if owner is not None]


def quantised(found: Walk) -> bool:
    """True when a parameter or buffer is of a tensor class that holds packed or scaled data.

    Plain tensors, parameters and DTensors are not; Transformer Engine's quantised tensors,
    ModelOpt's and torchao's wrappers are: what a task takes from them is not static.
    """
    plain = {"Tensor", "Parameter", "Buffer", "DTensor", "UninitializedParameter", "UninitializedBuffer"}
    return any(
        cls.__name__ not in plain or not cls.__module__.startswith("torch")
        for cls in set(map(type, found.tensors))
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
    chunk = chunks[0] if chunks else None
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


def _surroundings(found: Walk, pretrained: Any, extra: tuple[Any, ...]) -> dict[str, Any]:
    """What a plan depends on besides modules and tensors; compared by value."""
    mappings = sys.modules.get(_MAPPINGS)
    registry = getattr(getattr(mappings, "AutoMapping", None), "_MODULE_TYPE_REGISTRY", {})
    source = getattr(pretrained, "config", pretrained)
    return {
        "configuration": [_scalars(config) for config in found.configs],
        "adapters": found.adapters,
        "Hugging Face model": (_scalars(pretrained), _scalars(source)),
        "module types": {kind: frozenset(names) for kind, names in registry.items()},
        "export options": (*extra, os.environ.get(_QUANT_SWITCH)),
    }


_STREAMED: tuple[tuple[str, Callable[[Walk], Iterable[Any]]], ...] = (
    ("structure", lambda found: found.layout),
    ("modules or parameters", lambda found: found.links),
    ("module classes", lambda found: map(type, found.modules)),
    ("tensor classes", lambda found: map(type, found.tensors)),
    ("shapes", lambda found: map(operator.attrgetter("shape"), found.tensors)),
    ("dtypes", lambda found: map(operator.attrgetter("dtype"), found.tensors)),
    ("configuration objects", lambda found: map(id, found.configs)),
)


@dataclass
class Fingerprint:
    """Record of what a plan was made for; see :func:`take` and :func:`difference`."""

    watch: Watch
    streamed: dict[str, list[Any]]
    surroundings: dict[str, Any]
    groups: list[Any]
    pretrained: Callable[[], Any]
    chunks: list[int]


def take(
    chunks: Sequence[Any], pretrained: Any, extra: tuple[Any, ...], watch: Watch | None = None
) -> Fingerprint:
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
    watch.add(found.modules)
    watch.add(found.tensors)
    watch.add(found.configs)
    return Fingerprint(
        watch=watch,
        streamed={name: list(get(found)) for name, get in _STREAMED},
        surroundings=_surroundings(found, pretrained, extra),
        groups=process_groups(chunks),
        pretrained=watch.reference(pretrained),
        chunks=list(map(id, chunks)),
    )


def difference(
    old: Fingerprint, chunks: Sequence[Any], pretrained: Any, extra: tuple[Any, ...], found: Walk
) -> str | None:
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
    sizes = (len(found.layout), len(found.links), len(found.modules), len(found.tensors), len(found.configs))
    keys = ("structure", "modules or parameters", "module classes", "shapes", "configuration objects")
    if sizes != tuple(len(old.streamed[key]) for key in keys):
        return "structure"
    for name, get in _STREAMED:
        if not all(map(operator.eq, get(found), old.streamed[name])):
            return name
    now = _surroundings(found, pretrained, extra)
    return next((name for name, value in old.surroundings.items() if now[name] != value), None)
