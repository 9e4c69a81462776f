"""What the consumer's source says, before any upstream is looked at.

Expressions are kept symbolically, so that one reading of a consumer serves every upstream
version: ``AutoBridge.from_hf_pretrained(p).x`` is ``Attr(Call(Attr(Name(...), ...)), "x")``.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from packaging.version import InvalidVersion, Version

# --- expressions -------------------------------------------------------------


@dataclass(frozen=True)
class Name:
    """A dotted path: an import, or a function, class or module of the consumer itself."""

    path: str


@dataclass(frozen=True)
class Attr:
    """``base.name``."""

    base: Expr
    name: str


@dataclass(frozen=True)
class Call:
    """The result of calling ``func``."""

    func: Expr


@dataclass(frozen=True)
class Ref:
    """The value of a variable: faults of the expression were told where it was assigned."""

    value: Expr


@dataclass(frozen=True)
class Options:
    """One of several, depending on what ran."""

    items: tuple[Expr, ...]


@dataclass(frozen=True)
class Param:
    """A parameter of a consumer function: what its call sites pass."""

    function: str
    name: str


@dataclass(frozen=True)
class SelfOf:
    """An instance of a consumer class (``self`` in its methods)."""

    cls: str


@dataclass(frozen=True)
class SuperOf:
    """``super()`` in a method of a consumer class."""

    cls: str


@dataclass(frozen=True)
class SignatureOf:
    """``inspect.signature(func)``, or its ``parameters``."""

    func: Expr


@dataclass(frozen=True)
class Const:
    """A literal string, number or None."""

    value: str | int | float | bool | None


@dataclass(frozen=True)
class VersionOf:
    """The version of a distribution; ``text`` when it is an unparsed string."""

    dist: str
    text: bool


@dataclass(frozen=True)
class Opaque:
    """Anything that is not followed."""


Expr = Name | Attr | Call | Ref | Options | Param | SelfOf | SuperOf | SignatureOf | Const | VersionOf | Opaque
OPAQUE = Opaque()


def options(*items: Expr) -> Expr:
    """The join of several values, flattened, without doubles."""
    flat: dict[Expr, None] = {}
    for item in items:
        for part in item.items if isinstance(item, Options) else (item,):
            flat[part] = None
    return next(iter(flat)) if len(flat) == 1 else Options(tuple(flat))


# --- conditions --------------------------------------------------------------


@dataclass(frozen=True)
class VersionTest:
    """``dist <op> literal``; compared as text where the source compares strings."""

    dist: str
    op: str
    literal: str
    text: bool


@dataclass(frozen=True)
class DeferredTest:
    """``left <op> literal`` where ``left`` may turn out to be a version (a parameter, a function's result)."""

    left: Expr
    op: str
    literal: str


@dataclass(frozen=True)
class ParameterTest:
    """``"name" in inspect.signature(func).parameters``."""

    func: Expr
    name: str


@dataclass(frozen=True)
class Not:
    """Negation."""

    test: Test


@dataclass(frozen=True)
class All:
    """Conjunction."""

    tests: tuple[Test, ...]


@dataclass(frozen=True)
class AnyOf:
    """Disjunction."""

    tests: tuple[Test, ...]


@dataclass(frozen=True)
class Unknown:
    """A condition that only running tells."""

    source: str


@dataclass(frozen=True)
class Fixed:
    """A condition that is known (``TYPE_CHECKING`` is False)."""

    value: bool


@dataclass(frozen=True)
class ImportFails:
    """True when at least one of these imports fails: the handler of their ``try`` runs."""

    paths: tuple[str, ...]


Test = VersionTest | Not | All | AnyOf | Unknown | Fixed | ImportFails | DeferredTest | ParameterTest

COMPARE: Mapping[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip


Exists = Callable[[str], "bool | None"]


def evaluate(test: Test, versions: Mapping[str, str], exists: Exists) -> bool | None:
    """The value of a condition at these versions; None where it cannot be told.

    ``exists`` tells whether an import works there (None: not known).
    """
    match test:
        case ImportFails(paths=paths):
            known = [exists(path) for path in paths]
            return True if False in known else None if None in known else False
        case Fixed(value=value):
            return value
        case VersionTest():
            return _compare(test, versions.get(test.dist))
        case Not(test=inner):
            opposite = evaluate(inner, versions, exists)
            return None if opposite is None else not opposite
        case All(tests=tests):
            values = [evaluate(item, versions, exists) for item in tests]
            return False if False in values else None if None in values else True
        case AnyOf(tests=tests):
            values = [evaluate(item, versions, exists) for item in tests]
            return True if True in values else None if None in values else False
    return None


def resolved(
    test: Test, dist_of: Callable[[Expr], VersionOf | None], has_parameter: Callable[[Expr, str], bool | None]
) -> Test:
    """A condition with its deferred parts replaced where they turn out to be version checks."""
    match test:
        case DeferredTest(left=left, op=op, literal=literal):
            found = dist_of(left)
            return test if found is None else VersionTest(found.dist, op, literal, found.text)
        case ParameterTest(func=func, name=name):
            known = has_parameter(func, name)
            return test if known is None else Fixed(known)
        case Not(test=inner):
            return Not(resolved(inner, dist_of, has_parameter))
        case All(tests=tests):
            return All(tuple(resolved(item, dist_of, has_parameter) for item in tests))
        case AnyOf(tests=tests):
            return AnyOf(tuple(resolved(item, dist_of, has_parameter) for item in tests))
    return test


def _compare(test: VersionTest, version: str | None) -> bool | None:
    if version is None:
        return None
    if test.text:
        return bool(COMPARE[test.op](version, test.literal))
    try:
        return bool(COMPARE[test.op](Version(version), Version(test.literal)))
    except InvalidVersion:
        return None


def has_parameter_test(test: Test) -> bool:
    """Whether a condition asks a signature."""
    match test:
        case ParameterTest():
            return True
        case Not(test=inner):
            return has_parameter_test(inner)
        case All(tests=tests) | AnyOf(tests=tests):
            return any(has_parameter_test(item) for item in tests)
    return False


def has_version_test(test: Test) -> bool:
    """Whether a condition looks at a version."""
    match test:
        case VersionTest():
            return True
        case Not(test=inner):
            return has_version_test(inner)
        case All(tests=tests) | AnyOf(tests=tests):
            return any(has_version_test(item) for item in tests)
    return False
