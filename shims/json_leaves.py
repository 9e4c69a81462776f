"""Values of a configuration that have no parts, as strict JSON (see :mod:`.json_safe`)."""

from __future__ import annotations

import base64
import datetime
import decimal
import enum
import fractions
import math
import os
import re
import sys
import types
import uuid
from typing import Any

NOT_A_LEAF = object()
MAX_ELEMENTS = 1024
"""Tensors and arrays up to this size are written with their values."""


def leaf(value: Any) -> Any:
    """The JSON form of a value without parts, else :data:`NOT_A_LEAF`."""
    if value is None or value is True or value is False:
        return value
    if isinstance(value, enum.Enum):  # before str and int: str(IntEnum) changed in Python 3.11
        return enum_text(value)
    if isinstance(value, str):
        return plain_text(value)
    if isinstance(value, int):
        return _integer(int.__int__(value))
    if isinstance(value, float):
        return _finite(float.__float__(value))
    if isinstance(value, complex):
        return {"real": _finite(value.real), "imag": _finite(value.imag)}
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"base64": base64.b64encode(bytes(value)).decode("ascii")}
    for convert in (_standard, _numpy, _torch):
        done = convert(value)
        if done is not NOT_A_LEAF:
            return done
    return NOT_A_LEAF


def plain_text(value: str) -> str:
    """An exact ``str`` that any UTF-8 reader takes: lone surrogates are spelled out."""
    return str.encode(value, "utf-8", "backslashreplace").decode("utf-8")


def enum_text(value: enum.Enum) -> str:
    """``AttnBackend.flash``; a flag without a name gives its number."""
    name = value.name if isinstance(value.name, str) else f"({value.value})"
    return plain_text(f"{type(value).__name__}.{name}")


def qualified_name(value: Any) -> str:
    """``module.Class.method`` of a function, method or class; no memory address in it."""
    while isinstance(value, types.MethodType):
        value = value.__func__
    name = getattr(value, "__qualname__", None)
    if not isinstance(name, str):
        return opaque(value)
    home = getattr(value, "__module__", None)
    return plain_text(f"{home}.{name}" if isinstance(home, str) and home else name)


def opaque(value: Any) -> str:
    """``<module.Class>`` for what has no better text."""
    cls = type(value)
    return plain_text(f"<{cls.__module__}.{cls.__qualname__}>")


def _integer(value: int) -> int | str:
    return value if value.bit_length() <= 8192 else hex(value)  # int() refuses text of over 4300 digits


def _finite(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"


def _standard(value: Any) -> Any:
    if isinstance(value, os.PathLike):
        path = os.fspath(value)
        return plain_text(path) if isinstance(path, str) else leaf(path)
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, (datetime.timedelta, decimal.Decimal, fractions.Fraction, uuid.UUID)):
        return str(value)
    if isinstance(value, re.Pattern):
        return leaf(value.pattern)
    if isinstance(value, (range, slice)):
        return repr(value)
    return NOT_A_LEAF


def _numpy(value: Any) -> Any:
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return NOT_A_LEAF
    if isinstance(value, numpy.dtype):
        return str(value)
    if isinstance(value, numpy.generic):
        item = value.item()
        if isinstance(item, numpy.generic):  # longdouble has no Python equal
            item = float(item) if isinstance(item, numpy.floating) else complex(item)
        done = leaf(item)
        return str(value) if done is NOT_A_LEAF else done
    if isinstance(value, numpy.ndarray) and value.dtype != object:
        return _array(value, str(value.dtype), value.size)
    return NOT_A_LEAF


def _array(value: Any, dtype: str, size: int) -> dict[str, Any]:
    done: dict[str, Any] = {"dtype": dtype, "shape": [int(n) for n in value.shape]}
    if size <= MAX_ELEMENTS:
        try:
            done["values"] = _nested(value.tolist())
        except Exception:  # a layout or dtype that has no Python values: dtype and shape must do
            return done
    return done


def _nested(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_nested(item) for item in value]
    done = leaf(value)
    return opaque(value) if done is NOT_A_LEAF else done


def _torch(value: Any) -> Any:
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "Tensor"):
        return NOT_A_LEAF
    if isinstance(value, (torch.dtype, torch.device, torch.layout, torch.memory_format)):
        return str(value)
    if isinstance(value, torch.nn.Module):
        return opaque(value)
    if not isinstance(value, torch.Tensor):
        return NOT_A_LEAF
    # Values of a DTensor or of a fake tensor would need collectives or do not exist.
    readable = type(value) in (torch.Tensor, torch.nn.Parameter) and value.device.type in ("cpu", "cuda")
    size = value.numel() if readable and value.layout is torch.strided else MAX_ELEMENTS + 1
    return _array(value.detach(), str(value.dtype), size)
