"""Patch records: prepared first, applied together or not at all, undone exactly."""

from __future__ import annotations

import inspect
import sys
from types import ModuleType
from typing import Any

from verl_compat.later import Later
from verl_compat.records import Adapter, Add, Patch, Register, Replace, Untouched, Wrap, dotted_get
from verl_compat.refs import resolve
from verl_compat.steps import ABSENT, AddMembers, Backfill, Gate, SetSlot, Step, commit, label, undo
from verl_compat.wrapping import CollisionError, function_of, is_wrapper, wrapped

__all__ = ["CollisionError", "DriftError", "commit", "prepare", "undo"]


class DriftError(Exception):
    """The target is upstream's own, but not of the shape that the adapter was written for."""


# adapter and name -> originals that were displaced, over all lives of a module that is reloaded
_originals: dict[tuple[str, str], list[Any]] = {}


def prepare(adapter: Adapter, module: ModuleType) -> list[Step]:
    """Resolve everything that an adapter will change; nothing is changed yet.

    Raises:
        CollisionError: the original is not upstream's own code.
        DriftError: the original has other parameters than the adapter expects.
        ImportError, AttributeError: a shim, an owner or an original is missing.
    """
    later = Later(adapter)
    steps: list[Step] = []
    for patch in adapter.patches:
        steps += _prepare_one(patch, adapter, module, later)
    if any(isinstance(patch, Replace) and patch.later for patch in adapter.patches):
        steps.append(later)  # last, so that it is undone first
    return steps


def _prepare_one(patch: Patch, adapter: Adapter, module: ModuleType, later: Later) -> list[Step]:
    match patch:
        case Untouched():
            return _untouched(patch, module)
        case Add():
            return _prepare_add(patch, module)
        case Replace():
            return _prepare_replace(patch, adapter, module, later)
        case Wrap():
            return _prepare_wrap(patch, adapter, module)
        case Register():
            return _prepare_register(patch, module)
        case _:  # Provide, Check and OnImportError change no slot
            return []


def _untouched(patch: Untouched, module: ModuleType) -> list[Step]:
    if dotted_get(module, patch.path):
        raise CollisionError(patch.why)
    return []


def _prepare_add(patch: Add, module: ModuleType) -> list[Step]:
    owner, name = _owner(module, patch.path)
    present = name in vars(owner) if isinstance(owner, ModuleType) else hasattr(owner, name)
    return [] if present else [SetSlot(owner, name, _value(patch, module))]


def _prepare_replace(patch: Replace, adapter: Adapter, module: ModuleType, later: Later) -> list[Step]:
    owner, name = _owner(module, patch.path)
    raw = _raw(owner, name, patch.path)
    if not patch.data:
        _recognise(raw, patch, module)
        _same_shape(raw, patch)
    new = resolve(patch.value)(module, later) if patch.later else _value(patch, module)
    return [SetSlot(owner, name, new), *_consumers(adapter, owner, name, raw, new)]


def _prepare_wrap(patch: Wrap, adapter: Adapter, module: ModuleType) -> list[Step]:
    owner, name = _owner(module, patch.path)
    raw = _raw(owner, name, patch.path)
    _recognise(raw, patch, module)
    _same_shape(raw, patch)
    gate = Gate()
    new = wrapped(raw, resolve(patch.wrapper), gate, adapter.id)
    return [SetSlot(owner, name, new, gate), *_consumers(adapter, owner, name, raw, new)]


def _prepare_register(patch: Register, module: ModuleType) -> list[Step]:
    table = dotted_get(module, patch.path)
    if patch.key not in table:
        raise DriftError(f"{patch.path} has no key {patch.key!r}; it has {sorted(table)}")
    elsewhere = {key: set(patch.members) & members for key, members in table.items() if key != patch.key}
    taken = {member: key for key, members in elsewhere.items() for member in members}
    if taken:
        raise CollisionError(f"{patch.path} already registers {taken}")
    return [AddMembers(table, patch.key, patch.members)]


def _owner(module: ModuleType, path: str) -> tuple[Any, str]:
    parents, _, name = path.rpartition(".")
    return (dotted_get(module, parents) if parents else module), name


def _raw(owner: Any, name: str, path: str) -> Any:
    """The slot's own content, descriptors unbound."""
    if isinstance(owner, ModuleType):
        return dotted_get(owner, name)
    raw = inspect.getattr_static(owner, name, ABSENT)
    if raw is ABSENT:
        raise AttributeError(f"{label(owner)} has no attribute {name!r} (for {path})")
    return raw


def _value(patch: Add | Replace, module: ModuleType) -> Any:
    value = resolve(patch.value)
    return value(module) if patch.make else value


def _recognise(raw: Any, patch: Replace | Wrap, module: ModuleType) -> None:
    """Displace only upstream's own code: the file says more than a name that wrappers copy."""
    function = function_of(raw)
    home = sys.modules.get(patch.home, module) if patch.home else module
    if isinstance(function, type):
        if function.__module__ != home.__name__:
            raise CollisionError(f"{patch.path} is {function.__module__}.{function.__qualname__}, not upstream's own")
        return
    if isinstance(patch, Wrap) and patch.decorated:
        function = inspect.unwrap(function)
    if is_wrapper(function):
        return  # of another adapter of ours; they stack
    file = getattr(getattr(function, "__code__", None), "co_filename", None)
    if file is None or file != getattr(home, "__file__", None):
        raise CollisionError(f"{patch.path} is already replaced by code of {file or type(function).__name__}")


def _same_shape(raw: Any, patch: Replace | Wrap) -> None:
    if not patch.params:
        return
    names = tuple(inspect.signature(function_of(raw)).parameters)
    if names[: len(patch.params)] != patch.params:
        raise DriftError(f"{patch.path} takes {names}, expected it to begin with {patch.params}")


def _consumers(adapter: Adapter, owner: Any, name: str, old: Any, new: Any) -> list[Step]:
    """Back-fill of modules that bound the original early."""
    if not isinstance(owner, ModuleType):
        return []  # a class is shared; whoever bound it sees the new method
    earlier = _originals.setdefault((adapter.id, name), [])
    return [Backfill(adapter.consumers, name, old, new, earlier)] if adapter.consumers else []
