"""Which parts of a checkpoint parameter a sync delivered, told by the calls of its weight loader.

A parameter that is made anew for a reload holds uninitialised memory until it is loaded: what no
sync delivered must not be converted.
Upstream: loaders of vLLM 0.12 - 0.33: ``(param, loaded_weight, [shard])`` for linear layers,
``(param, loaded_weight, name, shard_id, expert_id, [return_success])`` for experts.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

LOADERS = ("weight_loader", "_weight_loader")
"""Where a parameter keeps its loader: an attribute, or behind a property of vLLM's classes."""

_SHARD_NAMES = ("shard_id", "loaded_shard_id")


class Delivered:
    """The deliveries to one parameter since it was made."""

    def __init__(self) -> None:
        self.any = False
        self.whole = False
        self.shards: set[Any] = set()
        self.experts: dict[Any, set[int]] = {}

    def note(self, arguments: dict[str, Any], ndim: int, result: Any) -> None:
        """Record one call of the loader; ``ndim`` is that of the parameter."""
        expert = arguments.get("expert_id")
        if expert is not None and result is False:
            return  # an expert of another rank
        self.any = True
        shard = next((arguments[name] for name in _SHARD_NAMES if arguments.get(name) is not None), None)
        if expert is not None:
            all_experts = getattr(arguments.get("loaded_weight"), "ndim", 0) == ndim > 2
            self.whole |= all_experts and shard is None
            self.experts.setdefault(shard, set()).add(-1 if all_experts else int(expert))
        elif shard is None:
            self.whole = True
        else:
            self.shards.update(shard if isinstance(shard, tuple) else (shard,))

    def missing(self, layer: Any, name: str, shape: tuple[int, ...]) -> Iterator[str]:
        """What of the parameter was not delivered, in words; nothing where all was, or where it cannot be told."""
        if not self.any:
            yield name
        elif self.whole:
            return
        elif self.experts:
            yield from self._missing_experts(layer, name, shape[0])
        else:
            widths = getattr(layer, "logical_widths", None) or getattr(layer, "output_partition_sizes", None) or ()
            if len(self.shards) < len(widths):
                yield f"{name} ({len(self.shards)} of {len(widths)} shards)"

    def _missing_experts(self, layer: Any, name: str, local: int) -> Iterator[str]:
        gated = getattr(getattr(layer, "moe_config", None), "is_act_and_mul", True)
        wanted = {"w1", "w3"} if name.startswith("w13_") and gated and self.experts.keys() <= {"w1", "w3"} else set()
        for shard in sorted(wanted | self.experts.keys(), key=str):
            seen = self.experts.get(shard, set())
            if -1 not in seen and len(seen) < local:
                yield f"{name} ({shard} of {len(seen)} of {local} experts)"


def recorded(loader: Callable[..., Any], delivered: Delivered) -> Callable[..., Any]:
    """A loader that notes its calls."""
    names = _parameter_names(loader)

    @functools.wraps(loader)
    def load(parameter: Any, *args: Any, **kwargs: Any) -> Any:
        result = loader(parameter, *args, **kwargs)
        arguments = {**dict(zip(names[1:], args, strict=False)), **kwargs}
        delivered.note(arguments, getattr(parameter, "ndim", 0), result)
        return result

    return load


@functools.lru_cache(maxsize=256)
def _names_of(function: Any) -> tuple[str, ...]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(name for name, p in inspect.signature(function).parameters.items() if p.kind in kinds)


def _parameter_names(loader: Callable[..., Any]) -> tuple[str, ...]:
    """Positional parameters as a caller sees them: a bound method's ``self`` is not among them."""
    function = getattr(loader, "__func__", loader)
    try:
        names = _names_of(function)
    except (TypeError, ValueError):
        return ()
    return names[1:] if inspect.ismethod(loader) else names
