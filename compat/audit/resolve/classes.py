"""Attributes of classes and functions: inherited, assigned elsewhere, or impossible to tell."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import griffe

from .answers import Answer

if TYPE_CHECKING:
    from .library import Library

STDLIB_BASES = (
    "abc",
    "collections",
    "contextlib",
    "dataclasses",
    "enum",
    "functools",
    "logging",
    "threading",
    "typing",
)
HARMLESS_DECORATORS = re.compile(
    r"(.*\.)?(dataclass(es\.dataclass)?|dataclass_transform|final|runtime_checkable|total_ordering|deprecated|"
    r"experimental_api|no_init_weights)"
)


def class_member(library: Library, owner: Answer, name: str, depth: int = 0, instance: bool = False) -> Answer:
    """One attribute of a class, inherited ones too."""
    path = f"{owner.path}.{name}"
    open_reason = ""
    for home, cls in mro(library, owner.obj):
        if isinstance(cls, str):
            known = foreign_attribute(cls, name)
            if known:
                return Answer("found", path=path)
            if known is None:
                open_reason = open_reason or f"inherits from {cls}"
            continue
        if name in cls.members:
            answer = home.definition(cls, name, f"{cls.path}.{name}", depth)
            return answer if answer.state == "found" else Answer("found", path=path)
        open_reason = open_reason or _open_class(home, cls, name, instance)
    if hasattr(type, name):  # what every class and every object has
        return Answer("found", path=path)
    if open_reason:
        return Answer("undecided", path=path, reason=open_reason)
    return Answer("missing", path=path, missing=path, owner="class")


def _open_class(library: Library, cls: Any, name: str, instance: bool) -> str:
    """Why a class may have attributes that its body does not show; empty when it cannot."""
    lookups = {"__getattr__", "__getattribute__"} & cls.members.keys()
    if lookups and instance:
        return f"{cls.path} has {min(lookups)}"
    if "metaclass" in cls.keywords and not re.search(r"ABCMeta|EnumMeta|EnumType", str(cls.keywords["metaclass"])):
        return f"{cls.path} has a metaclass"
    for decorator in cls.decorators:
        if not HARMLESS_DECORATORS.fullmatch(str(decorator.callable_path)):
            return f"{cls.path} is decorated with {decorator.callable_path}"
    file = library.tree.module_file(cls.module.path)
    text = library.tree.text(file) if file is not None else ""
    if re.search(rf"\.{re.escape(name)}\b\s*(:[^=\n]+)?=[^=]", text):
        return f"{cls.module.path} assigns .{name}"
    if instance:
        lines = text.splitlines()[(cls.lineno or 1) - 1 : cls.endlineno]
        if any("setattr(self" in line or "__dict__" in line for line in lines) and library.mentions(name):
            return f"{cls.path} sets attributes dynamically"
    return ""


def mro(library: Library, cls: Any, seen: frozenset[str] = frozenset()) -> list[tuple[Library, Any]]:
    """The class, its bases, theirs and so on; a base outside the audited set is its path text."""
    found: list[tuple[Library, Any]] = [(library, cls)]
    if cls.path in seen:
        return found
    for base in cls.bases:
        for home, item in _base(library, cls, base, seen | {cls.path}):
            if all(item is not other for _, other in found):
                found.append((home, item))
    return found


def _base(library: Library, cls: Any, base: Any, seen: frozenset[str]) -> list[tuple[Library, Any]]:
    while isinstance(base, griffe.ExprSubscript):
        base = base.left
    if not isinstance(base, (griffe.ExprName, griffe.ExprAttribute)):
        return [(library, str(base))]
    path = library.expression_path(base, cls.parent)
    owner = library.owner_of(path)
    if owner is None:
        return [(library, path)]
    answer = owner.resolve(path)
    if answer.state == "found" and answer.obj is not None and answer.obj.kind is griffe.Kind.CLASS:
        return mro(owner.home_of(answer.path), answer.obj, seen)
    return [(library, path if answer.obj is not None else answer.path or path)]


def function_attribute(library: Library, owner: Answer, name: str) -> Answer:
    """An attribute of a function: the usual ones, or one that its module assigns."""
    path = f"{owner.path}.{name}"
    if hasattr(function_attribute_model, name):
        return Answer("found", path=path)
    if owner.obj.decorators:
        return Answer("undecided", path=path, reason=f"{owner.path} is decorated")
    file = library.tree.module_file(owner.obj.module.path)
    if file is not None and re.search(rf"\.{re.escape(name)}\b", library.tree.text(file)):
        return Answer("undecided", path=path, reason=f"{owner.obj.module.path} mentions .{name}")
    return Answer("missing", path=path, missing=path, owner="function")


def function_attribute_model() -> None:
    """A plain function: what it has, every function has."""


def foreign_attribute(path: str, name: str) -> bool | None:
    """Whether a class of the standard library has an attribute; None for classes not known here."""
    module, _, rest = path.rpartition(".")
    if not module:
        module, rest = "builtins", path
    if module.split(".")[0] not in (*STDLIB_BASES, "builtins", "typing_extensions"):
        return None
    if rest in ("Protocol", "Generic", "ABC", "TypedDict"):
        return hasattr(object, name)
    try:
        cls = getattr(importlib.import_module(module), rest)
    except (ImportError, AttributeError):
        return None
    return hasattr(cls, name)


def module_level_names(body: Sequence[ast.stmt]) -> set[str]:
    """Names that a module's statements store anywhere outside functions, and by ``global`` inside them."""
    names: set[str] = set()
    stack: list[ast.AST] = list(body)
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
            names |= {name for inner in ast.walk(node) if isinstance(inner, ast.Global) for name in inner.names}
            continue
        elif isinstance(node, ast.Lambda):
            continue
        stack.extend(ast.iter_child_nodes(node))
    return names
