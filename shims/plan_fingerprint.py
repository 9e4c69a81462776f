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
from itertools import chain
from typing import Any

from verl_compat.shims.plan_state import BLOCK, State, tensors_of, walk

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


def _adapter_facts(adapters: Iterable[Any]) -> list[tuple[Any, ...]]:
    """What adapter tasks copy from their modules, besides the weights."""
    names = ("alpha", "dim", "input_is_parallel", "base_linear_is_parallel")
    owners = [owner for adapter in adapters for owner in (adapter, *vars(adapter)["_modules"].values())]
    return [tuple(vars(owner).get(name) for name in names) for owner in owners if owner is not None]


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
    ``pg_collection`` if it has one (of a vision-language model first its language model's, which
    Bridge 0.6 prefers), followed by megatron-core's global ones.
    """
    chunk: Any = chunks[0] if chunks else None
    while "module" in getattr(chunk, "_modules", ()):  # DDP, Float16Module and other wrappers
        chunk = chunk.module
    owners = (getattr(chunk, "language_model", None), chunk)
    collections = [own for owner in owners if (own := getattr(owner, "pg_collection", None)) is not None]
    groups = [getattr(own, name, None) for own in collections for name in _GROUP_FIELDS]
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


References = list[Callable[[], Any]]
Picker = Callable[[list[Any]], tuple[Any, ...]]


@dataclass(frozen=True)
class _Block:
    """What was recorded of neighbouring modules.

    Attributes:
        modules, tensors: their part of the fingerprint's lists.
        values: of :meth:`~verl_compat.shims.plan_state.State.values`.
        slots: pick what hangs on them out of all modules, tensors, configurations and a None.
    """

    modules: slice
    tensors: slice
    values: list[list[Any]]
    slots: list[Picker]

    def difference(self, state: State, objects: list[Any]) -> str | None:
        """What of these modules has changed, in words."""
        # Values before slots: with equal numbers of things on each module the slots line up.
        for (name, values), recorded in zip(state.values(), self.values, strict=True):
            if values != recorded:
                return name
        for (name, things), pick in zip(state.slots(), self.slots, strict=True):
            if not all(map(operator.is_, things, pick(objects))):
                return name
        return None


@dataclass
class Fingerprint:
    """Record of what a plan was made for; see :func:`take` and :func:`difference`."""

    watch: Watch
    chunks: list[int]
    modules: References
    tensors: References
    configs: References
    adapters: References
    blocks: list[_Block]
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
    modules, adapters = found.modules, found.adapters
    tensors = _distinct(found.tensors)
    configs = _distinct(config for module in modules if (config := vars(module).get("config")) is not None)
    watch = watch or Watch()

    def weak(targets: Iterable[Any]) -> References:
        return [watch.reference(target) for target in targets]

    return Fingerprint(
        watch=watch,
        chunks=list(map(id, chunks)),
        modules=weak(modules),
        tensors=weak(tensors),
        configs=weak(configs),
        adapters=weak(adapters),
        blocks=list(_blocks(modules, tensors, configs)),
        surroundings=_surroundings(configs, adapters, pretrained, extra),
        groups=process_groups(chunks),
        pretrained=watch.reference(pretrained),
    )


def _blocks(modules: list[Any], tensors: list[Any], configs: list[Any]) -> Iterator[_Block]:
    place = {id(thing): index for index, thing in enumerate(chain(modules, tensors, configs))}
    seen: set[int] = set()
    for start in range(0, len(modules), BLOCK):
        part = slice(start, start + BLOCK)
        first = len(seen)
        seen.update(map(id, tensors_of(modules[part])))  # ``tensors`` has them in this order
        mine = slice(first, len(seen))
        state = State(modules[part], tensors[mine])
        slots = [_picker(place.get(id(thing), -1) for thing in things) for _, things in state.slots()]
        yield _Block(part, mine, [values for _, values in state.values()], slots)


def _picker(positions: Iterable[int]) -> Picker:
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
    objects = [*modules, *tensors, *configs, None]
    for block in old.blocks:
        changed = block.difference(State(modules[block.modules], tensors[block.tensors]), objects)
        if changed is not None:
            return changed
    now = _surroundings(configs, adapters, pretrained, extra)
    return next((name for name, value in old.surroundings.items() if now[name] != value), None)
