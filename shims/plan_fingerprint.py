"""What a conversion plan depends on, taken when it is made and checked before each reuse.

A plan (Megatron-Bridge's list of conversion tasks and the caches inside their mappings)
names modules, parameters and buffers of one model, their shapes and dtypes, and process
groups.  :func:`take` records all of that; :func:`difference` compares it with the model as
it is now, streaming, without building a second record.

Modules and configurations are compared by identity.  Identities alone could lie, since a freed
object's address is reused, so each of them is also watched by a weak reference: once one of
them is gone, the record is void (:attr:`Watch.gone`).  Nothing here keeps a model alive.

Nothing refers to a tensor, not even weakly: torch refuses to swap tensors that have weak references
(``Module.to`` of DTensor parameters, and everything under
``torch.__future__.set_swap_module_params_on_conversion``).  A tensor is known by its slot, module and name,
where a plan reads it anew for each export.

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

from verl_compat.shims.plan_state import BLOCK, State, walk

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


class UnplacedError(LookupError):
    """A tensor that is no parameter or buffer of the model's modules."""


class Watch:
    """Weak references to modules and configurations, which remember whether any of them has gone.

    Tensors are referred to by their slots; see :meth:`place` and :meth:`tensor`.
    """

    def __init__(self) -> None:
        self.gone = False
        self._slots: dict[int, tuple[Any, str, str]] = {}
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

    def place(self, modules: Iterable[Any]) -> None:
        """Learn where the tensors hang, as long as the model stays as it is (while a plan is made)."""
        self._slots = {
            id(tensor): (self.reference(module), table, name)
            for module in modules
            for table in ("_parameters", "_buffers")
            for name, tensor in vars(module)[table].items()
            if tensor is not None
        }

    def tensor(self, target: Any) -> Callable[[], Any]:
        """A callable that reads the slot of ``target``: what hangs there when it is called.

        Raises:
            UnplacedError: ``target`` hangs on none of the modules.
        """
        try:
            owner, table, name = self._slots[id(target)]
        except KeyError:
            raise UnplacedError(f"a {type(target).__name__} that is no parameter or buffer of the model") from None
        return lambda: vars(owner())[table][name]

    def placed(self) -> None:
        """Forget the places: the plan is made."""
        self._slots = {}


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
        modules: their part of the fingerprint's list.
        values: of :meth:`~verl_compat.shims.plan_state.State.values`.
        slots: pick what hangs on them out of all modules, configurations and a None.
    """

    modules: slice
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
    configs = _distinct(config for module in modules if (config := vars(module).get("config")) is not None)
    watch = watch or Watch()
    watch.place(modules)

    def weak(targets: Iterable[Any]) -> References:
        return [watch.reference(target) for target in targets]

    return Fingerprint(
        watch=watch,
        chunks=list(map(id, chunks)),
        modules=weak(modules),
        configs=weak(configs),
        adapters=weak(adapters),
        blocks=list(_blocks(modules, configs)),
        surroundings=_surroundings(configs, adapters, pretrained, extra),
        groups=process_groups(chunks),
        pretrained=watch.reference(pretrained),
    )


def _blocks(modules: list[Any], configs: list[Any]) -> Iterator[_Block]:
    place = {id(thing): index for index, thing in enumerate(chain(modules, configs))}
    for start in range(0, len(modules), BLOCK):
        part = slice(start, start + BLOCK)
        state = State(modules[part])
        slots = [_picker(place.get(id(thing), -1) for thing in things) for _, things in state.slots()]
        yield _Block(part, [values for _, values in state.values()], slots)


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
    modules, configs, adapters = (
        [reference() for reference in references] for references in (old.modules, old.configs, old.adapters)
    )
    objects = [*modules, *configs, None]
    for block in old.blocks:
        changed = block.difference(State(modules[block.modules]), objects)
        if changed is not None:
            return changed
    now = _surroundings(configs, adapters, pretrained, extra)
    return next((name for name, value in old.surroundings.items() if now[name] != value), None)
