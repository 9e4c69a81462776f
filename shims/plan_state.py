"""A model's modules and tensors as they are now, in the form in which they are compared.

Pure reading, no torch is imported.  Megatron models have two or more modules per parameter, so what
is done per module decides what the check of a kept plan costs.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, compress, repeat
from typing import Any


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
    return Walk(modules, tensors_of(modules), adapters)


def tensors_of(modules: Iterable[Any]) -> list[Any]:
    """Parameters and buffers that hang directly on ``modules``; one that hangs twice comes twice."""
    tables = [vars(module)[name] for module in modules for name in ("_parameters", "_buffers")]
    return [tensor for table in tables for tensor in table.values() if tensor is not None]


def quantised(found: Walk) -> bool:
    """True when a parameter or buffer is of a tensor class that holds packed or scaled data.

    Plain tensors, parameters and DTensors are not; Transformer Engine's quantised tensors,
    ModelOpt's and torchao's wrappers are: what a task takes from them is not static.
    """
    plain = {"Tensor", "Parameter", "Buffer", "DTensor", "UninitializedParameter", "UninitializedBuffer"}
    return any(
        cls.__name__ not in plain or not cls.__module__.startswith("torch") for cls in set(map(type, found.tensors))
    )


_TABLES = ("_modules", "_parameters", "_buffers")

BLOCK = 256
"""Modules that are looked at together: few enough to stay in a processor's cache from one table to the next."""


class State:
    """Some modules and their tensors as they are now, read table by table.

    Nearly all of it runs in C, some dozen nanoseconds per item; most tables are empty and
    are looked at once.
    """

    def __init__(self, modules: list[Any]) -> None:
        self._modules = modules
        self._states = list(map(vars, modules))
        self._tables = [list(map(operator.itemgetter(name), self._states)) for name in _TABLES]
        self._filled = [list(filter(None, tables)) for tables in self._tables]
        _, *tables = self._filled
        self._slots = list(chain.from_iterable(map(dict.values, chain.from_iterable(tables))))
        self._tensors = [tensor for tensor in self._slots if tensor is not None]

    def values(self) -> Iterator[tuple[str, list[Any]]]:
        """What is compared by value: names and numbers of things on each module, classes, shapes, dtypes.

        With the same modules in the same order (:meth:`slots`) they mean an equal tree, so no
        traversal is needed to check.  Tensors are compared by their addresses, last of all: nothing may hold
        a tensor, not even weakly (``torch.utils.swap_tensors`` refuses those), and whoever uses a plan reads the
        tensor out of its slot, so that one at the address of a freed one is as good.
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
        yield "modules or parameters", list(map(id, self._slots))

    def slots(self) -> Iterator[tuple[str, Iterable[Any]]]:
        """What is compared by identity: the modules and configurations that hang on the modules, None included.

        Not by ``id()``: making the numbers costs ten times as much as comparing the objects.
        """
        yield "modules or parameters", chain.from_iterable(map(dict.values, self._filled[0]))
        get: Callable[..., Any] = dict.get
        yield "configuration objects", map(get, self._states, repeat("config"))
