"""Conditions in the consumer's source: version checks, ``hasattr``, ``TYPE_CHECKING``."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable

from .symbols import (
    All,
    AnyOf,
    Attr,
    Call,
    Const,
    DeferredTest,
    Expr,
    Fixed,
    Name,
    Not,
    Param,
    ParameterTest,
    Ref,
    SignatureOf,
    Test,
    Unknown,
    VersionOf,
    VersionTest,
)

OPERATORS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=",
}  # fmt: skip
MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}
WORDS: dict[type[ast.cmpop], tuple[str, bool]] = {
    ast.Eq: ("==", False), ast.NotEq: ("==", True), ast.Is: ("is", False), ast.IsNot: ("is", True),
    ast.In: ("in", False), ast.NotIn: ("in", True),
}  # fmt: skip
PARSERS = ("parse", "Version", "parse_version", "LooseVersion", "StrictVersion")

Evaluate = Callable[[ast.expr], Expr]


def is_version(value: object) -> bool:
    """Whether a literal looks like a version with a dot in it."""
    return isinstance(value, str) and re.fullmatch(r"\d+(\.\w+)+", value) is not None


Source = Callable[[ast.expr], str]
Inline = Callable[[ast.Call], "Test | None"]


def plain(expr: Expr) -> Expr:
    """A value without the marks of the variables that it went through."""
    while isinstance(expr, Ref):
        expr = expr.value
    return expr


def condition_of(node: ast.expr, evaluate: Evaluate, inline: Inline, source: Source = ast.unparse) -> Test:
    """A condition as far as it can be told without running it."""
    if isinstance(node, ast.BoolOp):
        parts = tuple(condition_of(value, evaluate, inline, source) for value in node.values)
        return All(parts) if isinstance(node.op, ast.And) else AnyOf(parts)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return Not(condition_of(node.operand, evaluate, inline, source))
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        found = _comparison(node, evaluate)
        if found is not None:
            return found
    if isinstance(node, ast.Constant) and isinstance(node.value, (bool, int)):
        return Fixed(bool(node.value))
    if isinstance(node, ast.Call):
        found = inline(node)
        if found is not None:
            return found
    if isinstance(node, (ast.Name, ast.Attribute)):
        value = plain(evaluate(node))
        if isinstance(value, Name) and value.path in ("typing.TYPE_CHECKING", "typing_extensions.TYPE_CHECKING"):
            return Fixed(False)
    return _unknown(node, source)


def _unknown(node: ast.expr, source: Source) -> Test:
    """A condition that only running tells; a negative comparison is kept as the opposite of the positive one."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        kind = type(node.ops[0])
        if kind in WORDS:
            text = f"{source(node.left)} {WORDS[kind][0]} {source(node.comparators[0])}"[:200]
            return Not(Unknown(text)) if WORDS[kind][1] else Unknown(text)
    return Unknown(source(node)[:200])


def contradictory(tests: tuple[Test, ...]) -> bool:
    """Whether a condition and its opposite both enclose a use, so that it never runs."""
    held = {test for test in tests if isinstance(test, Unknown)}
    denied = {test.test for test in tests if isinstance(test, Not) and isinstance(test.test, Unknown)}
    return bool(held & denied)


def _comparison(node: ast.Compare, evaluate: Evaluate) -> Test | None:
    if isinstance(node.ops[0], (ast.In, ast.NotIn)):
        return _parameter_test(node, evaluate)
    op = OPERATORS.get(type(node.ops[0]))
    if op is None:
        return None
    left, right = plain(evaluate(node.left)), plain(evaluate(node.comparators[0]))
    if isinstance(right, VersionOf) and not isinstance(left, VersionOf):
        left, right, op = right, left, MIRRORED[op]
    if isinstance(left, VersionOf) and isinstance(right, Const) and isinstance(right.value, str):
        return VersionTest(left.dist, op, right.value, left.text)
    if isinstance(right, Const) and isinstance(left, (Param, Call, Attr)) and is_version(right.value):
        return DeferredTest(left, op, str(right.value))
    return None


def _parameter_test(node: ast.Compare, evaluate: Evaluate) -> Test | None:
    container = plain(evaluate(node.comparators[0]))
    if not isinstance(container, SignatureOf) or not isinstance(node.left, ast.Constant):
        return None
    test = ParameterTest(container.func, str(node.left.value))
    return test if isinstance(node.ops[0], ast.In) else Not(test)


def names_asked(node: ast.expr) -> frozenset[str]:
    """Names whose presence a condition asks for: ``hasattr(x, "n")``, ``"n" in parameters``, ``find_spec("m")``."""
    names: set[str] = set()
    for inner in ast.walk(node):
        if isinstance(inner, ast.Call) and isinstance(inner.func, (ast.Name, ast.Attribute)):
            function = inner.func.id if isinstance(inner.func, ast.Name) else inner.func.attr
            if function in ("hasattr", "find_spec", "getattr"):
                names |= {a.value for a in inner.args if isinstance(a, ast.Constant) and isinstance(a.value, str)}
        elif isinstance(inner, ast.Compare) and isinstance(inner.ops[0], (ast.In, ast.NotIn)):
            names |= {c.value for c in (inner.left,) if isinstance(c, ast.Constant) and isinstance(c.value, str)}
    return frozenset(names)


def terminates(body: list[ast.stmt]) -> bool:
    """Whether a block never reaches its end: it returns, raises, or leaves the loop."""
    if not body:
        return False
    last = body[-1]
    if isinstance(last, (ast.Return, ast.Raise, ast.Continue, ast.Break)):
        return True
    if isinstance(last, ast.If):
        return bool(last.orelse) and terminates(last.body) and terminates(last.orelse)
    if isinstance(last, ast.With):
        return terminates(last.body)
    return False


def reraises(handler: ast.ExceptHandler) -> bool:
    """Whether an exception handler always raises again."""
    last = handler.body[-1] if handler.body else None
    if isinstance(last, ast.Raise):
        return True
    if isinstance(last, ast.If):
        return bool(last.orelse) and isinstance(last.body[-1], ast.Raise) and isinstance(last.orelse[-1], ast.Raise)
    return False


def caught_by(handlers: list[ast.ExceptHandler]) -> frozenset[str]:
    """Names of the exceptions that a ``try`` swallows."""
    names: set[str] = set()
    for handler in handlers:
        if reraises(handler):
            continue
        kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
        for kind in kinds:
            if kind is None:
                names.add("BaseException")
            elif isinstance(kind, (ast.Name, ast.Attribute)):
                names.add(kind.id if isinstance(kind, ast.Name) else kind.attr)
    return frozenset(names)
