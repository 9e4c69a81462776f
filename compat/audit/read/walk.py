"""Read one consumer file: names are followed in order, uses of anything imported are noted.

Nothing is looked up here; see :mod:`verl_compat.audit.check` for that.  Branches are walked
one by one, so that a name has the value of its own branch inside and all of them after.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, replace

from . import conditions, expressions
from .scopes import Scope, accepts, joined, variable
from .symbols import (
    OPAQUE,
    All,
    Attr,
    Call,
    Const,
    Expr,
    ImportFails,
    Name,
    Not,
    Options,
    Param,
    Ref,
    SelfOf,
    SuperOf,
    Test,
)
from .uses import Consumer, ConsumerClass, ConsumerFunction, Context, Use

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Settings:
    """What a walker must know: distribution by import root, one-line version helpers of the consumer."""

    roots: dict[str, str]
    helpers: dict[str, Function]
    tops: frozenset[str]
    words: frozenset[str]

    def dist_of(self, path: str) -> str:
        """The distribution whose package a dotted path starts with, else the path's first part."""
        for root, dist in self.roots.items():
            if path == root or path.startswith(root + "."):
                return dist
        return path.split(".")[0]

    def concerns(self, expr: Expr) -> bool:
        """Whether an expression may lead to an audited upstream."""
        while True:
            match expr:
                case Name(path=path):
                    return path.split(".")[0] in self.tops
                case Attr(base=inner) | Call(func=inner) | Ref(value=inner):
                    expr = inner
                case Options(items=items):
                    return any(self.concerns(item) for item in items)
                case Param() | SelfOf() | SuperOf():
                    return True
                case _:
                    return False


@dataclass
class _Pending:
    node: Function
    scope: Scope
    context: Context
    cls: str


class Walker:
    """Walks one file and adds what it finds to a :class:`Consumer`."""

    def __init__(self, module: str, is_package: bool, file: str, consumer: Consumer, settings: Settings) -> None:
        self.module = module
        self.package = module if is_package else module.rpartition(".")[0]
        self.file = file
        self.consumer = consumer
        self.settings = settings
        self.scope = Scope("module")
        self.context = Context(module)
        self.cls = ""
        self.function = ""
        self.patch_module = False
        self.tables: set[str] = set()
        self.lines: list[str] = []
        self._pending: list[_Pending] = []
        self._expressions = expressions.Expressions(self)

    def source(self, node: ast.expr) -> str:
        """The text of an expression, with single spaces."""
        if node.end_lineno == node.lineno and 0 < node.lineno <= len(self.lines):
            line = self.lines[node.lineno - 1]
            if line.isascii():
                return line[node.col_offset : node.end_col_offset]
        return " ".join(ast.unparse(node).split())

    def run(self, tree: ast.Module, patches: bool) -> None:
        """Walk the module, then the functions in it; ``patches``: it hands patch targets over in variables."""
        self.patch_module = patches
        self.tables = {
            target.id
            for node in tree.body
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        self.block(tree.body)
        self.consumer.modules[self.module] = self.scope.values
        while self._pending:
            self._function_body(self._pending.pop(0))

    # --- notes ---------------------------------------------------------------

    def note(self, kind: str, expr: Expr, node: ast.AST, **more: object) -> None:
        """Note a use at a node; what cannot be an audited upstream's is left out at once."""
        if not self.settings.concerns(expr):
            return
        line = getattr(node, "lineno", 0)
        self.consumer.uses.append(Use(kind, expr, self.file, line, self.context, **more))  # type: ignore[arg-type]

    def value(self, node: ast.expr | None) -> Expr:
        """The symbolic value of an expression; uses inside it are noted."""
        return OPAQUE if node is None else self._expressions.value(node)

    def test(self, node: ast.expr) -> Test:
        """A condition."""
        return self._expressions.test(node)

    def under(self, *tests: Test, names: frozenset[str] = frozenset()) -> Context:
        """The present context, with more conditions."""
        known = tuple(test for test in tests if not isinstance(test, All) or test.tests)
        return replace(self.context, tests=self.context.tests + known, names=self.context.names | names)

    # --- statements ----------------------------------------------------------

    def block(self, body: Sequence[ast.stmt]) -> None:
        """Statements in order; what follows ``if test: return`` stands under the opposite."""
        kept = self.context
        for statement in body:
            self.statement(statement)
            if isinstance(statement, ast.If) and conditions.terminates(statement.body) and not statement.orelse:
                asked = conditions.names_asked(statement.test)
                self.context = self.under(Not(self.quiet_test(statement.test)), names=asked)
            elif isinstance(statement, ast.Assert):
                asked = conditions.names_asked(statement.test)
                self.context = self.under(self.quiet_test(statement.test), names=asked)
        self.context = kept

    def quiet_test(self, node: ast.expr) -> Test:
        """A condition that was read before: its uses are not noted again."""
        count, calls = len(self.consumer.uses), len(self.consumer.calls)
        test = self.test(node)
        del self.consumer.uses[count:], self.consumer.calls[calls:]
        return test

    def statement(self, node: ast.stmt) -> None:
        """One statement."""
        method = getattr(self, "_on_" + type(node).__name__.lower(), None)
        if method is not None:
            method(node)
            return
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.value(child)
            elif isinstance(child, ast.stmt):
                self.statement(child)
            elif isinstance(child, ast.match_case):
                self.block(child.body)

    def _on_import(self, node: ast.Import) -> None:
        for alias in node.names:
            self.note("import", Name(alias.name), node)
            if alias.asname:
                self.scope.values[alias.asname] = Name(alias.name)
            else:
                top = alias.name.split(".")[0]
                self.scope.values[top] = Name(top)

    def _on_importfrom(self, node: ast.ImportFrom) -> None:
        base = self.absolute(node)
        for alias in node.names:
            if alias.name == "*":
                self.note("import", Name(base), node)
                continue
            path = f"{base}.{alias.name}" if base else alias.name
            self.note("import", Name(path), node, name=base)
            self.scope.values[alias.asname or alias.name] = Name(path)

    def absolute(self, node: ast.ImportFrom) -> str:
        """The absolute module name of a ``from`` import."""
        if not node.level:
            return node.module or ""
        parts = self.package.split(".") if self.package else []
        parts = parts[: len(parts) - (node.level - 1)]
        return ".".join([*parts, *([node.module] if node.module else [])])

    def _on_functiondef(self, node: Function) -> None:
        for decorator in node.decorator_list:
            self.value(decorator)
        for default in [*node.args.defaults, *node.args.kw_defaults]:
            self.value(default)
        path = f"{self.context.scope}.{node.name}"
        names = {ast.unparse(decorator) for decorator in node.decorator_list}
        static = "staticmethod" in names
        taken = accepts(node, bound=not static)
        is_property = bool(names & {"property", "cached_property", "functools.cached_property"})
        self.consumer.functions[path] = ConsumerFunction(path, taken, is_property)
        if self.scope.kind == "class":
            self.consumer.classes[self.cls].members[node.name] = Name(path)
            if not node.name.startswith("__") and not is_property:
                for base in self.consumer.classes[self.cls].bases:
                    self.note("override", base, node, name=node.name, accepts=taken)
        self.scope.values[node.name] = Name(path)
        context = replace(self.context, scope=path, caught=frozenset())
        self._pending.append(_Pending(node, self.scope, context, "" if static else self.cls))

    _on_asyncfunctiondef = _on_functiondef

    def _on_classdef(self, node: ast.ClassDef) -> None:
        for decorator in node.decorator_list:
            self.value(decorator)
        path = f"{self.context.scope}.{node.name}"
        record = ConsumerClass(path)
        for base in node.bases:
            inner = base.value if isinstance(base, ast.Subscript) else base
            value = self._expressions.value(inner, noted=False)
            self.note("base", value, base)
            record.bases.append(value)
        for keyword in node.keywords:
            self.value(keyword.value)
        self.consumer.classes[path] = record
        self.scope.values[node.name] = Name(path)
        kept = self.scope, self.cls, self.context
        self.scope, self.cls = Scope("class", self.scope), path
        self.context = replace(self.context, scope=path)
        self.block(node.body)
        for name, value in self.scope.values.items():
            record.members.setdefault(name, value)
        self.scope, self.cls, self.context = kept

    def _function_body(self, pending: _Pending) -> None:
        node = pending.node
        self.scope = Scope("function", pending.scope)
        self.context, self.cls = pending.context, pending.cls
        self.function = pending.context.scope
        arguments = [*node.args.posonlyargs, *node.args.args]
        for argument in [*arguments, *node.args.kwonlyargs]:
            self.scope.values[argument.arg] = variable(Param(self.function, argument.arg))
        for extra in (node.args.vararg, node.args.kwarg):
            if extra is not None:
                self.scope.values[extra.arg] = OPAQUE
        decorators = {d.id for d in node.decorator_list if isinstance(d, ast.Name)}
        in_class = pending.scope.kind == "class"
        if in_class and arguments and "staticmethod" not in decorators:
            self.scope.values[arguments[0].arg] = Name(self.cls) if "classmethod" in decorators else SelfOf(self.cls)
        self.block(node.body)

    def _on_return(self, node: ast.Return) -> None:
        value = self.value(node.value)
        record = self.consumer.functions.get(self.function)
        if record is not None and self.context.scope == self.function:
            record.returned.append(value)

    def _on_if(self, node: ast.If) -> None:
        test = self.test(node.test)
        asked = conditions.names_asked(node.test)
        kept, before = self.context, dict(self.scope.values)
        self.context = self.under(test, names=asked)
        self.block(node.body)
        after_body, self.scope.values = self.scope.values, dict(before)
        self.context = kept
        self.context = self.under(Not(test), names=asked)
        self.block(node.orelse)
        self.context = kept
        branches = [] if conditions.terminates(node.body) else [after_body]
        if not (node.orelse and conditions.terminates(node.orelse)):
            branches.append(self.scope.values)
        self._set(joined(branches, before))

    def _set(self, values: dict[str, Expr]) -> None:
        self.scope.values = values

    def _on_try(self, node: ast.Try) -> None:
        kept, before = self.context, dict(self.scope.values)
        self.context = replace(kept, caught=kept.caught | conditions.caught_by(node.handlers))
        self.block(node.body)
        self.context = kept
        self.block(node.orelse)
        branches = [self.scope.values]
        failing = ImportFails(imported(node.body, self))
        for handler in node.handlers:
            self.context = self.under(failing) if failing.paths and for_imports(handler) else kept
            self.value(handler.type)
            self.scope.values = {**before, **({handler.name: OPAQUE} if handler.name else {})}
            self.block(handler.body)
            if not conditions.terminates(handler.body):
                branches.append(self.scope.values)
        self.context = kept
        self._set(joined(branches, before))
        self.block(node.finalbody)

    _on_trystar = _on_try

    def _on_with(self, node: ast.With) -> None:
        caught: set[str] = set()
        for item in node.items:
            self.value(item.context_expr)
            if item.optional_vars is not None:
                self.assign(item.optional_vars, OPAQUE, node)
            call = item.context_expr
            if isinstance(call, ast.Call) and ast.unparse(call.func) in ("suppress", "contextlib.suppress"):
                caught |= {ast.unparse(arg).rpartition(".")[2] for arg in call.args}
        kept = self.context
        self.context = replace(kept, caught=kept.caught | caught)
        self.block(node.body)
        self.context = kept

    _on_asyncwith = _on_with

    def _on_for(self, node: ast.For) -> None:
        self.value(node.iter)
        self.assign(node.target, OPAQUE, node)
        self._loop(node.body, node.orelse)

    _on_asyncfor = _on_for

    def _on_while(self, node: ast.While) -> None:
        test = self.test(node.test)
        kept = self.context
        self.context = self.under(test, names=conditions.names_asked(node.test))
        self._loop(node.body, [])
        self.context = kept
        self.block(node.orelse)

    def _loop(self, body: list[ast.stmt], orelse: list[ast.stmt]) -> None:
        before = dict(self.scope.values)
        self.block(body)
        self._set(joined([before, self.scope.values], before))
        self.block(orelse)

    def _on_assert(self, node: ast.Assert) -> None:
        self.test(node.test)
        self.value(node.msg)

    def _on_assign(self, node: ast.Assign) -> None:
        kept, first = self.context, node.targets[0]
        if self.patch_module and self.scope.kind == "module" and isinstance(first, ast.Name):
            # a table of patch targets: what is done with it is done where it is read
            self.context = replace(kept, scope=f"{kept.scope}.{first.id}")
        value = self.value(node.value)
        self.context = kept
        for target in node.targets:
            self.assign(target, value, node)

    def _on_annassign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.assign(node.target, self.value(node.value), node)
        elif isinstance(node.target, ast.Name) and self.scope.kind == "class":
            self.scope.values.setdefault(node.target.id, OPAQUE)

    def _on_augassign(self, node: ast.AugAssign) -> None:
        self.value(node.value)
        self.assign(node.target, OPAQUE, node)

    def _on_delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            if isinstance(target, ast.Name):
                self.scope.values.pop(target.id, None)

    def _on_global(self, node: ast.Global) -> None:
        for name in node.names:
            self.scope.values[name] = OPAQUE

    _on_nonlocal = _on_global

    def assign(self, target: ast.expr, value: Expr, node: ast.stmt | ast.expr) -> None:
        """Bind a target; an assignment to an attribute may be a patch of upstream."""
        if isinstance(target, ast.Name):
            plain = isinstance(value, (Name, Const))
            self.scope.values[target.id] = value if plain else variable(value)
        elif isinstance(target, (ast.Tuple, ast.List)):
            for element in target.elts:
                self.assign(element, OPAQUE, node)
        elif isinstance(target, ast.Starred):
            self.assign(target.value, OPAQUE, node)
        elif isinstance(target, ast.Attribute):
            base = self._expressions.value(target.value)
            if isinstance(base, SelfOf):
                record = self.consumer.classes.get(base.cls)
                if record is not None:
                    record.assigned.setdefault(target.attr, []).append(variable(value))
            else:
                self.patched(base, target.attr, value, node)
        elif isinstance(target, ast.Subscript):
            self.value(target.value)
            self.value(target.slice)

    def patched(self, base: Expr, name: str, value: Expr, node: ast.AST) -> None:
        """An attribute of something imported is set."""
        function = self.consumer.functions.get(value.path) if isinstance(value, Name) else None
        taken = function.accepts if function is not None else None
        self.note("patch", base, node, name=name, accepts=taken)


def imported(body: list[ast.stmt], walker: Walker) -> tuple[str, ...]:
    """What the import statements of a block import, when the block holds nothing else; else nothing."""
    paths: list[str] = []
    for node in body:
        if isinstance(node, ast.Import):
            paths += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = walker.absolute(node)
            paths += [base if alias.name == "*" else f"{base}.{alias.name}" for alias in node.names]
        elif not (isinstance(node, ast.Assign) and isinstance(node.value, (ast.Constant, ast.Name))):
            return ()
    return tuple(paths)


def for_imports(handler: ast.ExceptHandler) -> bool:
    """Whether a handler is for failed imports."""
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    names = {ast.unparse(kind) for kind in kinds if kind is not None}
    return bool(names & {"ImportError", "ModuleNotFoundError", "Exception"})


def helper_functions(module: str, tree: ast.Module) -> dict[str, Function]:
    """Functions of a module that only return a comparison: version helpers may be among them."""
    found: dict[str, Function] = {}
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef):
            continue
        body = [s for s in node.body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
        body = [s for s in body if not isinstance(s, (ast.Import, ast.ImportFrom))]
        if len(body) == 1 and isinstance(body[0], ast.Return) and isinstance(body[0].value, ast.Compare):
            found[f"{module}.{node.name}"] = node
    return found
