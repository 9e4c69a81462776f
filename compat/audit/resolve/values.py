"""What a symbolic expression is at one version set: evaluated against the libraries."""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace

import griffe

from ..read.consumer import member_path, own_path
from ..read.symbols import Attr, Call, Const, Expr, Name, Opaque, Options, Param, Ref, SelfOf, SuperOf, VersionOf
from ..read.uses import Consumer
from .answers import Answer
from .library import Library, World

MAX_DEPTH = 40
MAX_VALUES = 12


@dataclass(frozen=True)
class Value:
    """One thing that an expression may be.

    ``kind``: ``upstream`` (``answer`` says what), ``instance`` (of ``answer``'s class), ``prefix``
    (a namespace above an import root, or another module path not yet below one), ``consumer``
    (a class, function or module of the consumer), ``self`` (an instance of a consumer class),
    ``gone`` (missing; ``told`` when the place that made it was told), ``none``, ``unknown``.
    """

    kind: str
    answer: Answer | None = None
    path: str = ""
    exact: bool = False
    told: bool = False
    reason: str = ""


UNKNOWN = Value("unknown")


class Evaluator:
    """Evaluates expressions of one consumer in one world."""

    def __init__(self, consumer: Consumer, world: World) -> None:
        self.consumer = consumer
        self.world = world
        self._known: dict[Expr, tuple[Value, ...]] = {}
        self._defined: set[str] | None = None
        self._running: set[Expr] = set()

    def values(self, expr: Expr) -> tuple[Value, ...]:
        """All that an expression may be; never empty."""
        known = self._known.get(expr)
        if known is not None:
            return known
        if expr in self._running or len(self._running) > MAX_DEPTH:
            return (UNKNOWN,)
        self._running.add(expr)
        try:
            found = tuple(dict.fromkeys(self._values(expr)))[:MAX_VALUES] or (UNKNOWN,)
        finally:
            self._running.discard(expr)
        self._known[expr] = found
        return found

    def _values(self, expr: Expr) -> list[Value]:
        match expr:
            case Name(path=path):
                return self._path(path)
            case Attr(base=base, name=name):
                return [value for item in self.values(base) for value in self.attribute(item, name)]
            case Call(func=func):
                return [value for item in self.values(func) for value in self._called(item)]
            case Ref(value=inner):
                return [replace(v, told=True) if v.kind == "gone" else v for v in self.values(inner)]
            case Options(items=items):
                return [value for item in items for value in self.values(item)]
            case Param(function=function, name=name):
                return self._parameter(function, name)
            case SelfOf(cls=cls):
                return [Value("self", path=cls)]
            case SuperOf(cls=cls):
                return [Value("super", path=cls)]
            case Const(value=None):
                return [Value("none")]
            case VersionOf(dist=dist, text=text):
                return [Value("version", path=dist, exact=text)]
            case Const() | Opaque():
                return [UNKNOWN]
        return [UNKNOWN]

    def version_of(self, expr: Expr) -> VersionOf | None:
        """The distribution whose version an expression is, None when it is anything else."""
        values = self.values(expr)
        if len(values) == 1 and values[0].kind == "version":
            return VersionOf(values[0].path, values[0].exact)
        return None

    def _path(self, path: str) -> list[Value]:
        library = self.world.owner(path)
        if library is not None:
            return [of_answer(library.resolve(path), told=True)]
        if self.world.is_prefix(path):
            return [Value("prefix", path=path)]
        own = own_path(self.consumer, path)
        if own in self.consumer.classes or own in self.consumer.functions or own in self.consumer.modules:
            return [Value("consumer", path=own)]
        module, _, name = own.rpartition(".")
        held = self.consumer.modules.get(module, {}).get(name)
        if held is not None and held != Name(path):
            return list(self.values(Ref(held)))
        if own != path:
            return self._path(own)
        return [UNKNOWN]

    def attribute(self, value: Value, name: str) -> list[Value]:
        """One attribute of one value."""
        if value.kind == "gone":
            return [replace(value, told=True)]
        if value.kind == "prefix":
            return [replace(item, told=False) for item in self._path(f"{value.path}.{name}")]
        if value.kind == "consumer":
            return self._consumer_attribute(value.path, name)
        if value.kind == "self":
            return self._self_attribute(value.path, name)
        if value.kind == "super":
            return self._super_attribute(value.path, name)
        if value.answer is None:
            return [value if value.kind == "none" else UNKNOWN]
        answer, instance, exact = value.answer, value.kind == "instance", value.exact
        if answer.obj is not None and answer.obj.kind is griffe.Kind.ATTRIBUTE:
            return [v for item in self.annotated(answer) for v in self.attribute(item, name)] or [UNKNOWN]
        library = self.world.owner(answer.path)
        if library is None or answer.obj is None:
            return [UNKNOWN]
        found = library.attribute(answer, name, instance=instance)
        if found.state == "missing" and instance and exact and self._adds(name):
            return [Value("unknown", path=found.path)]
        if found.state == "missing" and instance and not exact and self._may_define(library, name):
            reason = f"not on {answer.path}, but a subclass of it may define it"
            return [Value("unknown", path=found.path, reason=reason)]
        return [of_answer(found, told=False)]

    def _adds(self, name: str) -> bool:
        """Whether the consumer itself puts an attribute of this name on something."""
        return any(use.kind == "patch" and use.name == name for use in self.consumer.uses)

    def _may_define(self, library: Library, name: str) -> bool:
        """Whether any class, of the upstream or of the consumer, defines an attribute of this name."""
        if self._defined is None:
            classes = self.consumer.classes.values()
            self._defined = {n for record in classes for n in (*record.members, *record.assigned)}
            self._defined |= {use.name for use in self.consumer.uses if use.kind == "patch"}
        return name in self._defined or library.mentions_definition(name)

    def annotated(self, answer: Answer) -> list[Value]:
        """What the annotation of an attribute says that it holds."""
        if answer.obj is None or answer.obj.annotation is None:
            return []
        return self._annotation(str(answer.obj.annotation), answer.obj.parent, answer)

    def _annotation(self, text: str, scope: object, answer: Answer) -> list[Value]:
        library = self.world.owner(answer.path)
        if library is None:
            return [UNKNOWN]
        try:
            node = ast.parse(text.strip("'\""), mode="eval").body
        except SyntaxError:
            return [UNKNOWN]
        return [value for part in union_parts(node) for value in self._instance(part, scope, library)]

    def _instance(self, node: ast.expr, scope: object, library: Library) -> list[Value]:
        if isinstance(node, ast.Constant) and node.value is None:
            return [Value("none")]
        if not isinstance(node, (ast.Name, ast.Attribute)):
            return [UNKNOWN]
        text = ast.unparse(node)
        if text.rpartition(".")[2] == "Self":
            here = scope
            path = getattr(here, "path", "")
        else:
            path = library.expression_path(text, scope)
        owner = self.world.owner(path)
        answer = owner.resolve(path) if owner is not None else None
        if answer is None or answer.state != "found" or answer.obj is None or answer.obj.kind is not griffe.Kind.CLASS:
            return [UNKNOWN]
        return [Value("instance", answer)]

    def _called(self, value: Value) -> list[Value]:
        if value.kind in ("gone", "none"):
            return [replace(value, told=True)]
        if value.kind == "consumer":
            return self._consumer_call(value.path)
        if value.kind != "upstream" or value.answer is None or value.answer.obj is None:
            return [UNKNOWN]
        obj = value.answer.obj
        if obj.kind is griffe.Kind.CLASS:
            return [Value("instance", value.answer, exact=True)]
        if obj.kind is griffe.Kind.FUNCTION and obj.returns is not None:
            if {"async"} & obj.labels and str(obj.returns).startswith(("Async", "Iterator")):
                return [UNKNOWN]
            scope = obj.parent
            return self._annotation(str(obj.returns), scope, value.answer)
        return [UNKNOWN]

    # --- the consumer's own --------------------------------------------------

    def _consumer_attribute(self, path: str, name: str) -> list[Value]:
        record = self.consumer.classes.get(path)
        if record is not None:
            return self._member(path, name) or [UNKNOWN]
        return self._path(f"{path}.{name}")

    def _consumer_call(self, path: str) -> list[Value]:
        if path in self.consumer.classes:
            return [Value("self", path=path)]
        function = self.consumer.functions.get(path)
        if function is None or not function.returned:
            return [UNKNOWN]
        return [value for expr in function.returned for value in self.values(Ref(expr))]

    def _self_attribute(self, cls: str, name: str) -> list[Value]:
        found = self._member(cls, name)
        if found is not None:
            return found
        bases = self.upstream_bases(cls)
        if not bases or any(base.kind != "upstream" or base.answer is None for base in bases):
            return [UNKNOWN]
        answers = []
        for base in bases:
            assert base.answer is not None
            library = self.world.owner(base.answer.path)
            if library is None or base.answer.obj is None or base.answer.obj.kind is not griffe.Kind.CLASS:
                return [UNKNOWN]
            answers.append(library.attribute(base.answer, name, instance=True))
        present = [answer for answer in answers if answer.state != "missing"]
        return [of_answer(answer, told=False) for answer in present or answers[:1]]

    def _super_attribute(self, cls: str, name: str) -> list[Value]:
        """What ``super().name`` is in a method of a consumer class."""
        inner = self._own_bases(cls)[1:]
        if any(name in self.consumer.classes[here].members for here in inner) or (inner and name == "__init__"):
            return [UNKNOWN]  # the consumer's own; a class between may be a dataclass
        found = []
        for base in self.upstream_bases(cls):
            answer = base.answer
            library = self.world.owner(answer.path) if answer is not None else None
            if base.kind != "upstream" or answer is None or library is None or answer.obj is None:
                return [UNKNOWN]
            if name == "__init__":
                return [Value("init", answer, path=answer.path)]
            found.append(library.attribute(answer, name, instance=True))
        present = [answer for answer in found if answer.state != "missing"]
        return [of_answer(answer, told=False) for answer in present or found[:1]] or [UNKNOWN]

    def _member(self, cls: str, name: str) -> list[Value] | None:
        """A name that a consumer class, or one of its consumer bases, defines; None when none does."""
        for here in self._own_bases(cls):
            record = self.consumer.classes[here]
            assigned = record.assigned.get(name)
            if assigned:
                return [value for expr in assigned for value in self.values(expr)]
            if name in record.members:
                path = member_path(self.consumer, here, name)
                if path is not None and self.consumer.functions[path].is_property:
                    return self._consumer_call(path)
                if path is not None:
                    return [Value("consumer", path=path)]
                return list(self.values(Ref(record.members[name])))
        return None

    def _own_bases(self, cls: str) -> list[str]:
        order: list[str] = []
        stack = [cls]
        while stack:
            here = stack.pop(0)
            if here in order or here not in self.consumer.classes:
                continue
            order.append(here)
            for base in self.consumer.classes[here].bases:
                if isinstance(base, Name):
                    stack.append(own_path(self.consumer, base.path))
        return order

    def upstream_bases(self, cls: str) -> list[Value]:
        """What the class inherits from outside the consumer."""
        found = []
        for here in self._own_bases(cls):
            for base in self.consumer.classes[here].bases:
                found += [value for value in self.values(base) if value.kind != "consumer"]
        return found

    def _parameter(self, function: str, name: str) -> list[Value]:
        record = self.consumer.functions.get(function)
        passed = record.passed.get(name) if record is not None else None
        if not passed:
            return [UNKNOWN]
        return [value for expr in passed for value in self.values(Ref(expr))]


def of_answer(answer: Answer, told: bool) -> Value:
    """A library's answer as a value."""
    if answer.state == "missing":
        return Value("gone", answer, path=answer.missing, told=told)
    if answer.state == "undecided":
        return Value("unknown", path=answer.path, reason=answer.reason)
    return Value("upstream", answer, path=answer.path)


def union_parts(node: ast.expr) -> list[ast.expr]:
    """``X | None``, ``Optional[X]``, ``Union[X, Y]`` taken apart; ``X[T]`` is ``X``."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return union_parts(node.left) + union_parts(node.right)
    if isinstance(node, ast.Subscript):
        name = ast.unparse(node.value).rpartition(".")[2]
        if name in ("Optional", "Union", "Annotated"):
            inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            inner = inner[:1] if name == "Annotated" else inner
            return [part for item in inner for part in union_parts(item)]
        return (
            [node.value] if name[:1].isupper() and name not in ("Callable", "Type", "List", "Dict", "Tuple") else [node]
        )
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        try:
            return union_parts(ast.parse(node.value, mode="eval").body)
        except SyntaxError:
            return [node]
    return [node]
