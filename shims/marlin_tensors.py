"""The tensors that a layer and its quantisation method hold: finding them, copying into them, putting them back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def tensors(layer: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """All tensors held directly by a layer: parameters, buffers, plain attributes."""
    import torch

    for table in (layer._parameters, layer._buffers, vars(layer)):
        for name, value in table.items():
            if isinstance(value, torch.Tensor):
                yield name, value


def attributes(method: Any) -> Iterator[tuple[str, Any]]:
    """Instance attributes of a quantisation method (none for objects without ``__dict__``)."""
    yield from getattr(method, "__dict__", {}).items()


def get(layer: torch.nn.Module, name: str) -> torch.Tensor | None:
    """The tensor of this name that a layer holds."""
    import torch

    for table in (layer._parameters, layer._buffers, vars(layer)):
        value = table.get(name)
        if isinstance(value, torch.Tensor):
            return value
    return None


def put(layer: torch.nn.Module, name: str, live: torch.Tensor) -> None:
    """Set a tensor attribute to exactly this object, where such objects belong."""
    import torch

    if isinstance(live, torch.nn.Parameter):
        vars(layer).pop(name, None)
        layer._parameters[name] = live
        return
    layer._parameters.pop(name, None)
    if name in layer._buffers:
        layer._buffers[name] = live
    else:
        vars(layer)[name] = live


def copy_into(live: torch.Tensor, new: torch.Tensor, what: str) -> None:
    """Copy a conversion's result into the live tensor, address and layout unchanged."""
    if live.data_ptr() == new.data_ptr() and live.shape == new.shape:
        return
    if live.shape != new.shape or live.dtype != new.dtype:
        raise RuntimeError(
            f"verl-compat: reloading {what} gave {tuple(new.shape)} {new.dtype}, but the running kernel holds "
            f"{tuple(live.shape)} {live.dtype}. Weights of another shape need a new engine."
        )
    live.data.copy_(new.data)


def copy_tensors(live: Any, new: Any, seen: set[int] | None = None) -> None:
    """Copy every tensor reachable from ``new`` into its counterpart in ``live``.

    For kernel and quant-config objects that hold tensors which are no attribute of the
    layer (1 / input scale, for instance).  Follows attributes of objects of one and the
    same class, dicts, lists and tuples; stops at modules and at anything that differs.
    """
    import torch

    seen = set() if seen is None else seen
    if live is new or id(live) in seen or type(live) is not type(new):
        return
    seen.add(id(live))
    if isinstance(live, torch.Tensor):
        if live.shape == new.shape and live.dtype == new.dtype and live.data_ptr() != new.data_ptr():
            live.data.copy_(new.data)
    elif isinstance(live, torch.nn.Module):
        return
    elif isinstance(live, (list, tuple)):
        for mine, other in zip(live, new, strict=False):
            copy_tensors(mine, other, seen)
    else:
        mine_all = live if isinstance(live, dict) else getattr(live, "__dict__", {})
        other_all = new if isinstance(new, dict) else getattr(new, "__dict__", {})
        for key, mine in mine_all.items():
            if key in other_all:
                copy_tensors(mine, other_all[key], seen)
