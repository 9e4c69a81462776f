"""How a function or method is wrapped, and how a wrapper of ours is known again.

Functions are wrapped as plain functions and not as ``wrapt.FunctionWrapper``: an object proxy
cannot be pickled by name (it raises NotImplementedError), and Ray pickles functions of verl.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from verl_compat.steps import Gate

MARK = "__verl_compat__"


class CollisionError(Exception):
    """Somebody else has patched the target."""


def function_of(raw: Any) -> Any:
    """The function behind a slot."""
    if isinstance(raw, (staticmethod, classmethod)):
        return raw.__func__
    return raw.fget if isinstance(raw, property) else raw


def wrapped(raw: Any, shim: Callable[..., Any], gate: Gate, adapter_id: str) -> Any:
    """The slot content to install: a plain function in the same kind of descriptor."""
    function = function_of(raw)

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not gate.open:
            return function(*args, **kwargs)
        return shim(function, *args, **kwargs)

    setattr(wrapper, MARK, adapter_id)
    if isinstance(raw, property):
        return property(wrapper, raw.fset, raw.fdel, raw.__doc__)
    return type(raw)(wrapper) if isinstance(raw, (staticmethod, classmethod)) else wrapper


_WRAPPER_CODE = next(c for c in wrapped.__code__.co_consts if getattr(c, "co_name", "") == "wrapper")


def is_wrapper(function: Any) -> bool:
    """Whether a function is a wrapper of ours; those of several adapters stack."""
    return hasattr(function, MARK) and getattr(function, "__code__", None) is _WRAPPER_CODE
