"""What the containers of a configuration hold, read without changing them (see :mod:`.json_safe`)."""

from __future__ import annotations

import functools
import inspect
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from verl_compat.shims.json_leaves import opaque, qualified_name


def parts_of(value: Any) -> dict[Any, Any] | list[Any] | str:
    """What a container holds: a dict, a list, or the text of something opaque. Reads only."""
    if isinstance(value, functools.partial):
        return {"partial": value.func, "args": list(value.args), "keywords": dict(value.keywords)}
    if isinstance(value, type) or inspect.isroutine(value):
        return qualified_name(value)
    if type(value).__module__.partition(".")[0] == "omegaconf":
        return _omegaconf_parts(value)
    if is_dataclass(value):
        return _dataclass_parts(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return dict(zip(value._fields, value, strict=False))
    if isinstance(value, (list, tuple, set, frozenset, deque)):
        return list(value)
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):  # an array of objects
        return {"dtype": str(value.dtype), "shape": list(value.shape), "values": value.tolist()}
    return _object_parts(value)


def _dataclass_parts(value: Any) -> dict[Any, Any]:
    declared = [item.name for item in fields(value)]
    parts = {name: _attribute(value, name) for name in declared if _has(value, name)}
    parts.update((name, item) for name, item in getattr(value, "__dict__", {}).items() if name not in parts)
    return parts


def _has(value: Any, name: str) -> bool:
    try:
        return hasattr(value, name)
    except Exception:
        return True  # it is there and cannot be read: say so


def _attribute(value: Any, name: str) -> Any:
    try:
        return getattr(value, name)
    except Exception as error:
        return f"<unreadable: {type(error).__name__}>"


def _omegaconf_parts(value: Any) -> dict[Any, Any] | list[Any] | str:
    from omegaconf import OmegaConf

    try:
        plain = OmegaConf.to_container(value, resolve=True)
    except Exception:  # an interpolation that leads nowhere is kept as it was written
        plain = OmegaConf.to_container(value, resolve=False)
    return plain if isinstance(plain, (dict, list)) else str(plain)


def _object_parts(value: Any) -> dict[Any, Any] | list[Any] | str:
    plain = _own_dict(value)
    if plain is not None:
        return plain
    if type(value).__module__.partition(".")[0] in ("torch", "_thread", "threading", "builtins", "types"):
        return opaque(value)
    parts = {name: _attribute(value, name) for name in _slots(type(value)) if _has(value, name)}
    parts.update(getattr(value, "__dict__", {}))
    parts.update(getattr(value, "__pydantic_extra__", None) or {})
    return parts or opaque(value)


def _own_dict(value: Any) -> dict[Any, Any] | None:
    """What Hugging Face configurations say of themselves."""
    try:
        plain = value.to_dict()
    except Exception:
        return None
    return dict(plain) if isinstance(plain, Mapping) else None


def _slots(cls: type) -> Iterable[str]:
    for base in cls.__mro__:
        slots = base.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else tuple(slots):
            if name.startswith("__pydantic") or name in ("__dict__", "__weakref__"):
                continue
            yield f"_{base.__name__.lstrip('_')}{name}" if name.startswith("__") else name
