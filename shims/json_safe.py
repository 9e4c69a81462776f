"""A configuration as strict JSON: nothing that can be represented is dropped, nothing is mutated.

verl writes the Megatron transformer config next to each checkpoint.  Its 0.7 releases
delete attributes of the live config while they do so, and stop on a nested dtype; its 0.8
and 0.9 releases drop nested dataclasses, sets, tensors and callables in silence and write
``NaN``, which is no JSON (https://github.com/verl-project/verl/pull/6288).
"""

from __future__ import annotations

import enum
import json
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, make_dataclass
from typing import Any

from verl_compat.shims.json_leaves import NOT_A_LEAF, leaf, opaque, plain_text, qualified_name
from verl_compat.shims.json_parts import parts_of

logger = logging.getLogger(__name__)

MAX_DEPTH = 48
"""Levels of nesting written in place; what lies deeper moves to ``$deep`` at the top.

Python's own JSON encoder recurses, so that a deeper document could not be written."""

MAX_NODES = 50_000
"""Beyond it, containers are named only: something makes its parts anew without end."""

SHARED_NODES = 256
"""A container met again is written out again up to this size, and referred to beyond it."""


def to_json_safe(config: Any, *, on_collision: Callable[[str], None] | None = None) -> Any:
    """Convert a configuration to values that ``json.dumps(..., allow_nan=False)`` accepts.

    Args:
        config: dataclass, mapping, DictConfig, namespace, pydantic model or any nesting of them.
        on_collision: called with a sentence for each pair of keys that have the same JSON
            name (``1`` and ``"1"``); without it each is logged as a warning.  Both values
            are kept, the later under a name that tells its key's type.

    Returns:
        New dicts, lists, strings, numbers, booleans and None.  The order of mappings is
        kept, sets are sorted: equal input gives equal output in every process.

        ============================== =======================================================
        value                          written as
        ============================== =======================================================
        ``torch.dtype``, device        ``"torch.bfloat16"``, ``"cuda:0"``
        Enum (also str and int Enums)  ``"AttnBackend.flash"``
        NaN, infinities                ``"NaN"``, ``"Infinity"``, ``"-Infinity"``
        complex                        ``{"real": 1.0, "imag": -2.0}``
        tensor, NumPy array            dtype, shape and, up to 1024 elements, values
        bytes                          ``{"base64": "..."}``
        function, class, method        its qualified name
        ``functools.partial``          name, arguments and keywords
        cycle, large shared container  ``{"$ref": "#/path"}`` (a JSON pointer)
        below 48 levels                ``{"$ref": "#/$deep/0"}``, the rest in ``$deep``
        anything else                  ``"<module.Class>"``
        ============================== =======================================================

    Never raises for what it meets: a field that cannot be read becomes a text that says so.
    """
    return _Converter(on_collision or logger.warning).convert(config)


def json_safe_config_dict(config_dict: Mapping[str, Any]) -> Any:
    """Stand in for verl 0.8's and 0.9's ``_to_json_safe_config_dict``."""
    return to_json_safe(config_dict)


def save_with_config_snapshot(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Wrap verl 0.7's ``save_checkpoint``, which deletes attributes of the live config.

    For the time of the call the manager holds a snapshot with JSON-safe values, so that
    the live config is never touched and ``asdict`` meets nothing it cannot copy.
    """
    live = self.transformer_config
    self.transformer_config = snapshot(live)
    try:
        return original(self, *args, **kwargs)
    finally:
        self.transformer_config = live


def snapshot(config: Any) -> Any:
    """A dataclass instance with the JSON-safe values of ``config`` and its text."""
    values = to_json_safe(config)
    if not isinstance(values, dict) or not all(name.isidentifier() for name in values):
        return config  # no attribute names: leave it to upstream
    text = _text(config)
    made = make_dataclass(
        "TransformerConfigSnapshot",
        [(name, object, field(default=None)) for name in values],
        repr=False,
        # verl deletes what JSON cannot hold; here it all can.
        namespace={"__delattr__": lambda self, name: None, "__repr__": lambda self: text},
    )
    return made(**values)


def _text(config: Any) -> str:
    try:
        return repr(config)
    except Exception:
        return opaque(config)


class _Fixed(str):
    """The pointer of a set: its elements have no stable place of their own."""


@dataclass
class _Place:
    """Where a container was written, and how many nodes it has."""

    pointer: str
    nodes: int = 0
    open: bool = True


@dataclass
class _Converter:
    report: Callable[[str], None]
    places: dict[int, _Place] = field(default_factory=dict)
    keep: list[Any] = field(default_factory=list)  # an id is unique only while its object lives
    deep: deque[Any] = field(default_factory=deque)
    hoisted: int = 0
    nodes: int = 0
    deep_name: str = "$deep"

    def convert(self, config: Any) -> Any:
        root = self.value(config, "#", 0)
        below: list[Any] = []
        while self.deep:
            value = self.deep.popleft()
            del self.places[id(value)]
            below.append(self.value(value, f"#/{self.deep_name}/{len(below)}", 1))
        if not below:
            return root
        if not isinstance(root, dict):
            return {"$root": root, self.deep_name: below}
        root[self.deep_name] = below
        return root

    def value(self, value: Any, pointer: str, depth: int) -> Any:
        self.nodes += 1
        try:
            done = leaf(value)
            return self.container(value, pointer, depth) if done is NOT_A_LEAF else done
        except Exception as error:
            return f"{opaque(value)[:-1]}: unreadable, {type(error).__name__}>"

    def container(self, value: Any, pointer: str, depth: int) -> Any:
        seen = self.places.get(id(value))
        large = seen is not None and seen.nodes > SHARED_NODES and not isinstance(pointer, _Fixed)
        if seen is not None and (seen.open or large):
            return {"$ref": str(seen.pointer)}
        parts = parts_of(value)
        if isinstance(parts, str):
            return parts
        if self.nodes > MAX_NODES:
            return opaque(value)
        if depth == 0 and isinstance(parts, dict):
            while self.deep_name in parts:
                self.deep_name += "_"
        if depth >= MAX_DEPTH and parts:
            return self.hoist(value)
        place = self.places[id(value)] = seen or _Place(pointer)
        place.open, before = True, self.nodes
        self.keep.append(value)
        try:
            if isinstance(value, (set, frozenset)):
                return self.unordered(parts, pointer, depth)
            if isinstance(parts, dict):
                return self.mapping(parts, pointer, depth)
            return [self.value(item, _below(pointer, str(i)), depth + 1) for i, item in enumerate(parts)]
        finally:
            place.open, place.nodes = False, self.nodes - before

    def hoist(self, value: Any) -> dict[str, str]:
        pointer = f"#/{self.deep_name}/{self.hoisted}"
        self.hoisted += 1
        self.deep.append(value)
        self.places[id(value)] = _Place(pointer)  # open: met again, it is referred to
        self.keep.append(value)
        return {"$ref": pointer}

    def unordered(self, parts: Iterable[Any], pointer: str, depth: int) -> list[Any]:
        items = [self.value(item, _Fixed(pointer), depth + 1) for item in parts]
        return sorted(items, key=lambda item: json.dumps(item, sort_keys=True))

    def mapping(self, parts: dict[Any, Any], pointer: str, depth: int) -> dict[str, Any]:
        strings = {plain_text(key) for key in parts if _is_text(key)}
        names: dict[str, Any] = {}
        for key, item in parts.items():
            name = self.name(key, names, strings, pointer)
            names[name] = self.value(item, _below(pointer, name), depth + 1)
        return names

    def name(self, key: Any, names: Mapping[str, Any], strings: set[str], pointer: str) -> str:
        name = plain_text(key) if _is_text(key) else key_text(key)
        if name == "$ref":
            name = "$$ref"  # our own mark
        if name not in names and (_is_text(key) or name not in strings):
            return name
        kept, number = f"{name} ({type(key).__name__})", 2
        while kept in names or kept in strings:
            kept, number = f"{name} ({type(key).__name__} {number})", number + 1
        self.report(f"two keys of {pointer} are both {name!r} in JSON; one is kept as {kept!r}")
        return kept


def _is_text(key: Any) -> bool:
    return isinstance(key, str) and not isinstance(key, enum.Enum)


def key_text(key: Any) -> str:
    """A key that is no string, as JSON text where it has one (``true``, ``null``, ``[0, 1]``)."""
    if isinstance(key, (tuple, frozenset)):
        items = [key_text(item) for item in key]
        return json.dumps(sorted(items) if isinstance(key, frozenset) else items)
    try:
        done = leaf(key)
    except Exception:
        done = NOT_A_LEAF
    if done is NOT_A_LEAF:
        return qualified_name(key)
    return done if isinstance(done, str) else json.dumps(done)


def _below(pointer: str, name: str) -> str:
    """The JSON pointer of a child (RFC 6901)."""
    if isinstance(pointer, _Fixed):
        return pointer
    return f"{pointer}/{name.replace('~', '~0').replace('/', '~1')}"
