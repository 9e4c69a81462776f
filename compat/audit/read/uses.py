"""What a reading of a code base holds: its uses of other code, its classes and its functions."""

from __future__ import annotations

from dataclasses import dataclass, field

from .symbols import Expr, Test


@dataclass(frozen=True)
class Context:
    """Where a use stands.

    Attributes:
        scope: dotted name of the enclosing function or class, with its module.
        tests: conditions that hold there.
        caught: exception names that enclosing ``try`` blocks swallow.
        names: attribute or keyword names that an enclosing condition asks for (``hasattr``).
    """

    scope: str
    tests: tuple[Test, ...] = ()
    caught: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Shape:
    """What a call passes: positional count, keywords, and whether ``*`` or ``**`` hide more."""

    positional: int
    keywords: tuple[str, ...] = ()
    star: bool = False
    double_star: bool = False


@dataclass(frozen=True)
class Accepts:
    """What a consumer function accepts, ``self`` included.

    Attributes:
        positional: names of positional parameters, in order.
        required: how many of them have no default.
        keyword_only: mapping-like pairs (name, required).
        star, double_star: ``*args`` and ``**kwargs`` present.
        bound: False for static methods.
    """

    positional: tuple[str, ...]
    required: int
    keyword_only: tuple[tuple[str, bool], ...] = ()
    star: bool = False
    double_star: bool = False
    bound: bool = True


@dataclass(frozen=True)
class Use:
    """One use of something that may be upstream's.

    ``kind``: ``import``, ``attribute``, ``call``, ``base``, ``isinstance``, ``override`` (a
    method of a subclass), ``patch`` (an assignment to an attribute of a class or module),
    ``target`` (a patch target named in a string or by ``patch.object``; it must exist).
    """

    kind: str
    expr: Expr
    file: str
    line: int
    context: Context
    name: str = ""
    shape: Shape | None = None
    accepts: Accepts | None = None


@dataclass
class ConsumerClass:
    """A class of the consumer: its bases, its own names, what its methods assign to ``self``."""

    path: str
    bases: list[Expr] = field(default_factory=list)
    members: dict[str, Expr] = field(default_factory=dict)
    assigned: dict[str, list[Expr]] = field(default_factory=dict)


@dataclass
class ConsumerFunction:
    """A function of the consumer: parameter names, what call sites pass, what it returns."""

    path: str
    accepts: Accepts
    is_property: bool = False
    passed: dict[str, list[Expr]] = field(default_factory=dict)
    returned: list[Expr] = field(default_factory=list)


@dataclass(frozen=True)
class CallSite:
    """A call that may be of a consumer function, for what its parameters hold."""

    callee: Expr
    arguments: tuple[Expr, ...]
    keywords: tuple[tuple[str, Expr], ...]


@dataclass
class Consumer:
    """All that was read of one consumer release."""

    dist: str
    version: str
    modules: dict[str, dict[str, Expr]] = field(default_factory=dict)
    classes: dict[str, ConsumerClass] = field(default_factory=dict)
    functions: dict[str, ConsumerFunction] = field(default_factory=dict)
    uses: list[Use] = field(default_factory=list)
    calls: list[CallSite] = field(default_factory=list)
    read_attributes: set[str] = field(default_factory=set)
    unread: list[tuple[str, str]] = field(default_factory=list)
    references: dict[str, list[Context]] = field(default_factory=dict)
    files: int = 0
