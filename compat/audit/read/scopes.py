"""Names and what they stand for while a consumer file is read."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from .symbols import Expr, Options, Ref, options
from .uses import Accepts, Shape


@dataclass
class Scope:
    """One namespace; functions see the enclosing functions and the module, not enclosing classes."""

    kind: str
    parent: Scope | None = None
    values: dict[str, Expr] = field(default_factory=dict)

    def get(self, name: str) -> Expr | None:
        """The value of a name, None when it is not bound here or outside."""
        here: Scope | None = self
        while here is not None:
            if name in here.values and (here is self or here.kind != "class"):
                return here.values[name]
            here = here.parent
        return None

    def module(self) -> Scope:
        """The outermost scope."""
        here = self
        while here.parent is not None:
            here = here.parent
        return here


def joined(branches: list[dict[str, Expr]], before: dict[str, Expr]) -> dict[str, Expr]:
    """The names after branches that meet: a value per branch where they differ."""
    if not branches:
        return before
    merged: dict[str, Expr] = {}
    for name in {name for branch in branches for name in branch}:
        values = [branch[name] for branch in branches if name in branch]
        merged[name] = values[0] if all(value == values[0] for value in values) else options(*values)
        if isinstance(merged[name], Options) and len(merged[name].items) > 8:  # type: ignore[union-attr]
            merged[name] = options(*merged[name].items[:8])  # type: ignore[union-attr]
    return merged


def variable(value: Expr) -> Expr:
    """The value as a variable holds it."""
    return value if isinstance(value, Ref) else Ref(value)


def accepts(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, bound: bool = True) -> Accepts:
    """What a function definition accepts."""
    args = node.args
    positional = tuple(arg.arg for arg in [*args.posonlyargs, *args.args])
    keyword_only = tuple(
        (arg.arg, default is None) for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True)
    )
    return Accepts(
        positional=positional,
        required=len(positional) - len(args.defaults),
        keyword_only=keyword_only,
        star=args.vararg is not None,
        double_star=args.kwarg is not None,
        bound=bound,
    )


def shape(node: ast.Call) -> Shape:
    """What a call passes."""
    return Shape(
        positional=sum(not isinstance(arg, ast.Starred) for arg in node.args),
        keywords=tuple(keyword.arg for keyword in node.keywords if keyword.arg is not None),
        star=any(isinstance(arg, ast.Starred) for arg in node.args),
        double_star=any(keyword.arg is None for keyword in node.keywords),
    )
