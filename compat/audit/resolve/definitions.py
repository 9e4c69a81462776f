"""Small parts of a library: every definition of a name, and the calls in a module."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

import griffe


class Definitions(griffe.Extension):
    """Keeps every definition of a name: griffe's own table has room for the last one."""

    def __init__(self) -> None:
        self.seen: dict[tuple[str, str], list[Any]] = {}

    def _note(self, obj: Any) -> None:
        parent = obj.parent
        if parent is not None:
            self.seen.setdefault((parent.path, obj.name), []).append(obj)

    def on_function_instance(self, *, func: Any, **kwargs: Any) -> None:
        """Keep a function that is neither an overload nor a property's setter."""
        texts = [str(d.callable_path) for d in func.decorators]
        if not any(t.endswith(("overload", ".setter", ".deleter", ".getter")) for t in texts):
            self._note(func)

    def on_class_instance(self, *, cls: Any, **kwargs: Any) -> None:
        """Keep a class."""
        self._note(cls)

    def on_alias_instance(self, *, alias: Any, **kwargs: Any) -> None:
        """Keep an import."""
        self._note(alias)

    def on_attribute_instance(self, *, attr: Any, **kwargs: Any) -> None:
        """Keep an assignment."""
        if attr.name != "__all__":
            self._note(attr)


def calls_in(node: ast.AST, function: str) -> Iterator[tuple[str, ast.Call]]:
    """All calls below a node, with the name of the function that they stand in."""
    for child in ast.iter_child_nodes(node):
        inside = child.name if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)) else function
        if isinstance(child, ast.Call):
            yield function, child
        yield from calls_in(child, inside)
