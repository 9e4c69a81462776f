"""Symbolic values of a consumer's expressions; uses that occur inside them are noted."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from . import conditions
from .conditions import PARSERS, plain
from .scopes import Scope, accepts, shape
from .symbols import (
    OPAQUE,
    Attr,
    Call,
    Const,
    Expr,
    Name,
    Not,
    Opaque,
    Ref,
    SelfOf,
    SignatureOf,
    SuperOf,
    Test,
    Unknown,
    VersionOf,
    options,
)
from .uses import CallSite

if TYPE_CHECKING:
    from .walk import Walker

DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
VERSION_GETTERS = ("version", "get_version", "get_package_version")
MAX_CHAIN = 12


class Expressions:
    """Evaluates expressions for one walker."""

    def __init__(self, walker: Walker) -> None:
        self.walker = walker

    # --- values --------------------------------------------------------------

    def value(self, node: ast.expr, noted: bool = True) -> Expr:
        """The symbolic value; with ``noted`` an attribute chain on something imported is a use."""
        match node:
            case ast.Name(id=name):
                return self._name(name)
            case ast.Attribute():
                return self._attribute(node, noted)
            case ast.Call():
                return self._call(node)
            case ast.Constant(value=value):
                if isinstance(value, str):
                    self._string(value, node)
                return Const(value) if isinstance(value, (str, int, float, bool, type(None))) else OPAQUE
            case ast.BoolOp():
                return self._bool_op(node)
            case ast.IfExp():
                return self._if_expression(node)
            case ast.NamedExpr():
                named = self.value(node.value)
                self.walker.assign(node.target, named, node)
                return named
            case ast.Await(value=inner) | ast.Starred(value=inner):
                return self.value(inner)
            case ast.Lambda():
                return self._lambda(node)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                return self._comprehension(node)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.value(child)
        return OPAQUE

    def _name(self, name: str) -> Expr:
        found = self.walker.scope.get(name)
        if isinstance(found, Name):
            self._refer(found.path)
            if found.path.endswith(".__version__"):
                return VersionOf(self.walker.settings.dist_of(found.path), text=True)
        elif self.walker.patch_module and name in self.walker.tables:
            self._refer(f"{self.walker.module}.{name}")
        return OPAQUE if found is None else found

    def _refer(self, path: str) -> None:
        """Note that a name of the consumer is used, and where."""
        if path.split(".")[0] not in self.walker.settings.words:
            self.walker.consumer.references.setdefault(path, []).append(self.walker.context)

    def _attribute(self, node: ast.Attribute, noted: bool) -> Expr:
        base = self.value(node.value, noted=False)
        self.walker.consumer.read_attributes.add(node.attr)
        if isinstance(plain(base), (Opaque, Const, VersionOf)):
            return OPAQUE
        if node.attr == "__version__" and isinstance(plain(base), Name):
            return VersionOf(self.walker.settings.dist_of(plain(base).path), text=True)  # type: ignore[union-attr]
        if isinstance(plain(base), SignatureOf):
            return plain(base) if node.attr == "parameters" else OPAQUE
        result = Attr(base, node.attr)
        if isinstance(base, Name):
            self._refer(f"{base.path}.{node.attr}")
        if depth(result) > MAX_CHAIN:
            return OPAQUE
        if noted and isinstance(node.ctx, ast.Load):
            self.walker.note("attribute", result, node)
        return result

    def _bool_op(self, node: ast.BoolOp) -> Expr:
        walker, kept = self.walker, self.walker.context
        values = []
        for value in node.values:
            values.append(self.value(value))
            test = walker.quiet_test(value)
            asked = conditions.names_asked(value)
            walker.context = walker.under(test if isinstance(node.op, ast.And) else Not(test), names=asked)
        walker.context = kept
        return options(*values)

    def _if_expression(self, node: ast.IfExp) -> Expr:
        walker, kept = self.walker, self.walker.context
        test = self.test(node.test)
        asked = conditions.names_asked(node.test)
        walker.context = walker.under(test, names=asked)
        first = self.value(node.body)
        walker.context = kept
        walker.context = walker.under(Not(test), names=asked)
        second = self.value(node.orelse)
        walker.context = kept
        return options(first, second)

    def _lambda(self, node: ast.Lambda) -> Expr:
        with_scope = self._inner(dict.fromkeys(accepts(node).positional, OPAQUE))
        try:
            self.value(node.body)
        finally:
            with_scope()
        return OPAQUE

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> Expr:
        leave = self._inner({})
        for generator in node.generators:
            self.value(generator.iter)
            self.walker.assign(generator.target, OPAQUE, node)
            for condition in generator.ifs:
                self.value(condition)
        for part in [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]:
            self.value(part)
        leave()
        return OPAQUE

    def _inner(self, values: dict[str, Expr]) -> Callable[[], None]:
        outer = self.walker.scope
        self.walker.scope = Scope("function", outer, dict(values))

        def leave() -> None:
            self.walker.scope = outer

        return leave

    # --- calls ---------------------------------------------------------------

    def _call(self, node: ast.Call) -> Expr:
        function = self.value(node.func, noted=False)
        target = node.func
        called = target.id if isinstance(target, ast.Name) else target.attr if isinstance(target, ast.Attribute) else ""
        known = plain(function)
        builtin = isinstance(known, Opaque)
        if isinstance(known, Name):
            called = known.path.rpartition(".")[2]  # by its own name, whatever it was imported as
        if builtin and called in ("hasattr", "getattr", "setattr", "isinstance", "issubclass"):
            return self._builtin(called, node)
        if called == "super" and builtin and not node.args and self.walker.cls:
            return SuperOf(self.walker.cls)
        arguments = tuple(self.value(argument) for argument in node.args)
        keywords = tuple((k.arg, self.value(k.value)) for k in node.keywords if k.arg is not None)
        for keyword in node.keywords:
            if keyword.arg is None:
                self.value(keyword.value)
        version = self._version_call(called, arguments)
        if version is not None:
            return version
        if known in (Name("inspect.signature"), Attr(Name("inspect"), "signature")) and arguments:
            return SignatureOf(arguments[0])
        if called == "partial" and arguments:
            self.walker.note("call", arguments[0], node, shape=replace(shape(node), positional=0, star=True))
            return OPAQUE
        self._patch_call(called, known, arguments, node)
        if called == "import_module" and arguments and isinstance(plain(arguments[0]), Const):
            path = plain(arguments[0]).value  # type: ignore[union-attr]
            if isinstance(path, str) and re.fullmatch(r"\w+(\.\w+)*", path):
                self.walker.note("import", Name(path), node)
                return Name(path)
        if builtin:
            return OPAQUE
        self.walker.note("call", function, node, shape=shape(node))
        if not any(isinstance(argument, ast.Starred) for argument in node.args):
            self.walker.consumer.calls.append(CallSite(function, arguments, keywords))
        return Call(function)

    def _builtin(self, called: str, node: ast.Call) -> Expr:
        first = self.value(node.args[0]) if node.args else OPAQUE
        name = node.args[1].value if len(node.args) > 1 and isinstance(node.args[1], ast.Constant) else None
        if called == "hasattr":
            return OPAQUE
        if called == "getattr":
            if isinstance(name, str) and len(node.args) == 2 and not isinstance(plain(first), (Opaque, Const)):
                self.walker.note("attribute", Attr(first, name), node)
                return Attr(first, name)
            for rest in node.args[1:]:
                self.value(rest)
            return OPAQUE
        if called == "setattr" and len(node.args) == 3:
            value = self.value(node.args[2])
            if isinstance(name, str) and not isinstance(first, SelfOf):
                self.walker.patched(first, name, value, node)
            return OPAQUE
        if called in ("isinstance", "issubclass") and len(node.args) == 2:
            kinds = node.args[1].elts if isinstance(node.args[1], ast.Tuple) else [node.args[1]]
            for kind in kinds:
                self.walker.note("isinstance", self.value(kind), kind)
        return OPAQUE

    def _version_call(self, called: str, arguments: tuple[Expr, ...]) -> Expr | None:
        if len(arguments) != 1:
            return None
        value = plain(arguments[0])
        if called in PARSERS and isinstance(value, VersionOf):
            return replace(value, text=False)
        if called in PARSERS and isinstance(value, Const):
            return value
        if called in VERSION_GETTERS and isinstance(value, Const) and isinstance(value.value, str):
            return VersionOf(value.value, text=True)
        return None

    def _patch_call(self, called: str, function: Expr, arguments: tuple[Expr, ...], node: ast.Call) -> None:
        """``patch("a.b.c")``, ``patch.object(x, "name")``, ``monkeypatch.setattr(...)`` and their like."""
        text = ast.unparse(node.func)
        first = plain(arguments[0]) if arguments else OPAQUE
        second = plain(arguments[1]) if len(arguments) > 1 else OPAQUE
        if text.endswith(("patch.object", "monkeypatch.setattr")) and isinstance(second, Const):
            if isinstance(second.value, str):
                self.walker.note("target", Attr(arguments[0], second.value), node)
            return
        if text in ("patch", "mock.patch", "unittest.mock.patch", "mocker.patch", "monkeypatch.setattr"):
            self._target(first, node)
        elif called in ("wrap_function_wrapper", "patch_function_wrapper") and isinstance(second, Const):
            self._target_in(first, second, node)

    def _target(self, text: Expr, node: ast.expr) -> None:
        if isinstance(text, Const) and isinstance(text.value, str) and DOTTED.fullmatch(text.value):
            self.walker.note("target", Name(text.value), node)

    def _target_in(self, module: Expr, name: Const, node: ast.expr) -> None:
        if isinstance(module, Const):
            self._target(Const(f"{module.value}.{name.value}"), node)

    def _string(self, text: str, node: ast.expr) -> None:
        """A dotted string in a module that passes patch targets in variables."""
        if not self.walker.patch_module or self.walker.function or not DOTTED.fullmatch(text):
            return
        if any(text.startswith(root + ".") for root in self.walker.settings.roots):
            self.walker.note("target", Name(text), node)

    # --- conditions ----------------------------------------------------------

    def test(self, node: ast.expr) -> Test:
        """A condition; uses inside it are noted."""
        self.value(node)
        count, calls = len(self.walker.consumer.uses), len(self.walker.consumer.calls)
        test = conditions.condition_of(
            node, lambda inner: self.value(inner, noted=False), self._inline, self.walker.source
        )
        del self.walker.consumer.uses[count:], self.walker.consumer.calls[calls:]
        return test

    def _inline(self, node: ast.Call) -> Test | None:
        """A call of a consumer's one-line version helper, with constant arguments."""
        callee = plain(self.value(node.func, noted=False))
        if not isinstance(callee, Name):
            return None
        helpers = self.walker.settings.helpers
        helper = helpers.get(callee.path)
        if helper is None:
            named = [f for path, f in helpers.items() if path.rpartition(".")[2] == callee.path.rpartition(".")[2]]
            helper = named[0] if len(named) == 1 else None
        if helper is None:
            return None
        statement = helper.body[-1]
        if not isinstance(statement, ast.Return) or statement.value is None:
            return None
        leave = self._inner(bound_arguments(helper, node))
        try:
            test = conditions.condition_of(
                statement.value, lambda inner: self.value(inner, noted=False), lambda _: None, self.walker.source
            )
        finally:
            leave()
        return None if isinstance(test, Unknown) else test


def bound_arguments(helper: ast.FunctionDef | ast.AsyncFunctionDef, call: ast.Call) -> dict[str, Expr]:
    """Constant arguments of a call, and constant defaults, by parameter name."""
    parameters = [*helper.args.posonlyargs, *helper.args.args, *helper.args.kwonlyargs]
    defaults = [*helper.args.defaults]
    positional = [*helper.args.posonlyargs, *helper.args.args]
    values: dict[str, Expr] = {parameter.arg: OPAQUE for parameter in parameters}
    pairs: list[tuple[str, ast.expr | None]] = list(
        zip([p.arg for p in positional[len(positional) - len(defaults) :]], defaults, strict=True)
    )
    pairs += [(p.arg, d) for p, d in zip(helper.args.kwonlyargs, helper.args.kw_defaults, strict=True)]
    pairs += [(p.arg, a) for p, a in zip(positional, call.args, strict=False)]
    pairs += [(k.arg, k.value) for k in call.keywords if k.arg is not None]
    for name, node in pairs:
        if isinstance(node, ast.Constant) and isinstance(node.value, (str, int, float, bool, type(None))):
            values[name] = Const(node.value)
        elif node is not None:
            values[name] = OPAQUE
    return values


def depth(expr: Expr) -> int:
    """How many steps an expression is from its root."""
    steps = 0
    while True:
        if isinstance(expr, Attr):
            expr = expr.base
        elif isinstance(expr, Call):
            expr = expr.func
        elif isinstance(expr, Ref):
            expr = expr.value
        else:
            return steps
        steps += 1


def patches_by_variable(tree: ast.Module) -> bool:
    """Whether a module calls ``patch(target, ...)`` with a target that is not written there."""
    for node in ast.walk(tree):
        called = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "patch"
        if called and node.args and isinstance(node.args[0], ast.Name):  # type: ignore[attr-defined]
            return True
    return False
