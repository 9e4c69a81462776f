"""Check every use of a consumer against one version set."""

from __future__ import annotations

from dataclasses import replace

import griffe

from ..findings import Finding, Result, Undecided
from ..read.conditions import contradictory
from ..read.symbols import Attr, Expr, Name, Test, Unknown, evaluate, has_parameter_test, has_version_test, resolved
from ..read.uses import Consumer, Shape, Use
from ..resolve.library import Library, World
from ..resolve.signatures import Misfit, UndecidedError, misfits, of_class, of_function, replacement_misfits
from ..resolve.values import Evaluator, Value

SWALLOWS = {
    "missing-module": {"ModuleNotFoundError", "ImportError"},
    "missing-name": {"ImportError"},
    "missing-attribute": {"AttributeError"},
    "missing-patch-target": {"AttributeError", "ImportError"},
    "unknown-keyword": {"TypeError"},
    "missing-argument": {"TypeError"},
    "too-many-arguments": {"TypeError"},
    "override-signature": {"TypeError"},
    "became-function": {"TypeError"},
}
CATCH_ALL = {"Exception", "BaseException"}


class Checker:
    """One consumer at one version set."""

    def __init__(self, consumer: Consumer, world: World) -> None:
        self.consumer = consumer
        self.world = world
        self.versions = {library.dist: library.version for library in world.libraries}
        self.evaluator = Evaluator(consumer, world)
        self.findings: dict[tuple[object, ...], Finding] = {}
        self.undecided: dict[tuple[object, ...], Undecided] = {}
        self.count = 0
        self._conditions: dict[Test, bool | None] = {}

    def run(self) -> Result:
        """All uses, in order."""
        for use in self.consumer.uses:
            getattr(self, "_" + use.kind)(use)
        return Result(
            consumer=self.consumer.dist,
            consumer_version=self.consumer.version,
            versions=tuple(sorted(self.versions.items())),
            findings=tuple(sorted(self.findings.values())),
            undecided=tuple(sorted(self.undecided.values())),
            unread=tuple(self.consumer.unread),
            uses=self.count,
            files=self.consumer.files,
        )

    # --- records -------------------------------------------------------------

    def report(self, use: Use, symbol: str, problem: str, detail: str, name: str = "") -> None:
        """Add a finding, with what guards it."""
        provider = self.world.owner(symbol)
        finding = Finding(
            file=use.file,
            line=use.line,
            symbol=symbol,
            problem=problem,
            detail=detail,
            provider=provider.dist if provider is not None else "",
            guard=self._guard(use, problem, name or symbol),
            condition=next((t.source for t in reversed(use.context.tests) if isinstance(t, Unknown)), ""),
            scope=use.context.scope,
        )
        self.findings.setdefault((use.file, use.line, symbol, problem, detail), finding)

    def _guard(self, use: Use, problem: str, name: str) -> str:
        context = use.context
        for test in context.tests:
            if self._false_version(test):
                return "version"
            if self._false_parameter(test):
                return "presence"
        if self._unreached(context.scope):
            return "version"
        if context.caught & (SWALLOWS.get(problem, set()) | CATCH_ALL):
            return "exception"
        if name in context.names or name.rpartition(".")[2] in context.names:
            return "presence"
        return "none"

    def doubt(self, use: Use, symbol: str, reason: str) -> None:
        """Add an undecided use."""
        if reason:
            item = Undecided(use.file, use.line, symbol, use.kind, reason)
            self.undecided.setdefault((use.file, use.line, symbol), item)

    def _reachable(self, use: Use) -> bool:
        """Whether no condition around the use is known to be false (type checking blocks, ``if False``)."""
        tests = use.context.tests
        if contradictory(tests):
            return False
        return not any(
            self._evaluate(test) is False and not self._false_version(test) and not self._false_parameter(test)
            for test in tests
        )

    def _evaluate(self, test: Test) -> bool | None:
        if test not in self._conditions:
            known = self._resolved(test)
            self._conditions[test] = evaluate(known, self.versions, self._exists)
        return self._conditions[test]

    def _false_version(self, test: Test) -> bool:
        """Whether a condition is a version check that is false here."""
        return self._evaluate(test) is False and has_version_test(self._resolved(test))

    def _false_parameter(self, test: Test) -> bool:
        """Whether a condition asks a signature for a parameter, and the answer is no."""
        return has_parameter_test(test) and self._evaluate(test) is False

    def _resolved(self, test: Test) -> Test:
        return resolved(test, self.evaluator.version_of, self._has_parameter)

    def _has_parameter(self, func: Expr, name: str) -> bool | None:
        found = set()
        for value in self.evaluator.values(func):
            answer = value.answer
            if value.kind != "upstream" or answer is None or answer.obj is None:
                return None
            if answer.obj.kind is not griffe.Kind.FUNCTION or answer.ambiguous:
                return None
            names = {parameter.name for parameter in answer.obj.parameters}
            found.add(name in names)
        return found.pop() if len(found) == 1 else None

    def _exists(self, path: str) -> bool | None:
        """Whether an import works at this version set; None for other projects and undecided ones."""
        library = self.world.owner(path)
        if library is None:
            return None
        return {"found": True, "missing": False}.get(library.resolve(path).state)

    def _unreached(self, scope: str, depth: int = 0) -> bool:
        """Whether an enclosing function is only referred to behind version checks that are false here."""
        while scope:
            contexts = [c for c in self.consumer.references.get(scope, ()) if not c.scope.startswith(scope)]
            if contexts and scope in self.consumer.functions and depth < 3:
                dead = [
                    any(self._false_version(test) for test in context.tests)
                    or self._unreached(context.scope, depth + 1)
                    for context in contexts
                ]
                if all(dead):
                    return True
            scope = scope.rpartition(".")[0]
        return False

    # --- kinds of uses -------------------------------------------------------

    def _import(self, use: Use) -> None:
        if not isinstance(use.expr, Name):
            return
        path = use.expr.path
        library = self.world.owner(path)
        if library is None or not self._reachable(use):
            return
        self.count += 1
        answer = library.resolve(path)
        if answer.state == "missing":
            if answer.missing != path or (answer.owner == "module" and not use.name):
                self.report(use, path, "missing-module", f"no module {answer.missing}")
            else:
                self.report(use, path, "missing-name" if library.is_module(use.name) else "missing-module",
                            f"{use.name} has no {path[len(use.name) + 1 :]}")  # fmt: skip
        elif answer.state == "undecided":
            self.doubt(use, path, answer.reason)

    def _attribute(self, use: Use) -> None:
        self._chain(use)

    def _chain(self, use: Use, problem: str = "missing-attribute") -> tuple[Value, ...]:
        """The values of a use's expression; what is missing on the way is reported."""
        values = self.evaluator.values(use.expr)
        if not self._reachable(use):
            return ()
        known = [value for value in values if value.kind not in ("unknown", "none")]
        gone = [value for value in known if value.kind == "gone"]
        if any(value.kind in ("upstream", "gone", "instance") for value in values):
            self.count += 1
        if gone and len(gone) == len(known):
            fresh = [value for value in gone if not value.told]
            if not fresh:
                return ()
            open_ends = [value for value in values if value.kind == "unknown"]
            symbol = fresh[0].path
            if open_ends:
                self.doubt(use, symbol, "missing on one of several objects that it may be")
            else:
                self.report(
                    use,
                    symbol,
                    problem,
                    f"{fresh[0].path.rpartition('.')[0]} has no {fresh[0].path.rpartition('.')[2]}",
                )
            return ()
        if gone and not gone[0].told:
            self.doubt(use, gone[0].path, "missing on one of several objects that it may be")
        for value in values:
            if value.kind == "unknown" and value.reason:
                self.doubt(use, value.path, value.reason)
        return values

    def _target(self, use: Use) -> None:
        expr = use.expr
        if isinstance(expr, Name) and self.world.owner(expr.path) is None:
            return
        if isinstance(expr, Name):
            head, _, last = expr.path.rpartition(".")
            use = replace(use, expr=Attr(Name(head), last))
            values = self.evaluator.values(Name(head))
            gone = [value for value in values if value.kind == "gone"]
            if gone and self._reachable(use):
                self.count += 1
                self.report(use, expr.path, "missing-patch-target", f"{gone[0].path} does not exist")
                return
        self._chain(use, "missing-patch-target")

    def _base(self, use: Use) -> None:
        for value in self._chain(use):
            if _is_function(value):
                self.report(use, value.path, "became-function", f"{value.path} is a function; it cannot be subclassed")

    def _isinstance(self, use: Use) -> None:
        for value in self.evaluator.values(use.expr):
            if _is_function(value) and self._reachable(use):
                self.report(
                    use, value.path, "became-function", f"{value.path} is a function; isinstance raises TypeError"
                )

    def _call(self, use: Use) -> None:
        values = self._chain(use)
        if use.shape is None or not values:
            return
        if any(value.kind in ("unknown", "consumer", "self", "instance") for value in values):
            return
        values = tuple(replace(value, kind="upstream") if value.kind == "init" else value for value in values)
        wrong: list[tuple[Value, Misfit]] = []
        for value in values:
            if value.kind != "upstream" or value.answer is None or value.answer.obj is None:
                continue
            try:
                found = self._misfits(value, use)
            except UndecidedError as error:
                self.doubt(use, value.path, str(error))
                return
            if not found:
                return
            wrong += [(value, misfit) for misfit in found]
        for value, misfit in wrong:
            self.report(use, value.path, misfit.problem, misfit.detail, misfit.name)

    def _misfits(self, value: Value, use: Use) -> list[Misfit]:
        assert value.answer is not None
        assert use.shape is not None
        answer, obj = value.answer, value.answer.obj
        library = self.world.owner(answer.path)
        if obj.kind is griffe.Kind.CLASS and library is not None:
            return misfits(of_class(library, answer), use.shape)
        if obj.kind is griffe.Kind.FUNCTION:
            return misfits(of_function(obj, self._bound(use, obj), answer.ambiguous), use.shape)
        return []

    def _bound(self, use: Use, function: object) -> bool:
        """Whether the first parameter of a method is given by the access (instance, or classmethod)."""
        parent = getattr(function, "parent", None)
        labels: set[str] = getattr(function, "labels", set())
        if parent is None or parent.kind is not griffe.Kind.CLASS or "staticmethod" in labels:
            return False
        if "classmethod" in labels:
            return True
        expr = use.expr
        while not isinstance(expr, Attr):
            inner = getattr(expr, "value", None)
            if inner is None:
                return False
            expr = inner
        return any(
            value.kind in ("instance", "self", "super") or _is_value(value)
            for value in self.evaluator.values(expr.base)
        )

    def _override(self, use: Use) -> None:
        if not self._reachable(use):
            return
        for value in self.evaluator.values(use.expr):
            if value.kind == "upstream" and value.answer is not None and not _is_function(value):
                self._replaced(use, value)

    def _patch(self, use: Use) -> None:
        if not self._reachable(use):
            return
        for value in self.evaluator.values(use.expr):
            if value.kind != "upstream" or value.answer is None or value.answer.obj is None:
                continue
            kind = value.answer.obj.kind
            if kind not in (griffe.Kind.CLASS, griffe.Kind.MODULE):
                continue
            library = self.world.owner(value.answer.path)
            if library is None:
                continue
            self.count += 1
            found = library.attribute(value.answer, use.name)
            if found.state == "found":
                self._replaced(use, value)
            elif found.state == "missing" and use.accepts is not None:
                self._without_effect(use, library, found.missing)

    def _without_effect(self, use: Use, library: Library, symbol: str) -> None:
        if use.name in self.consumer.read_attributes:
            return  # the consumer adds it for itself
        if library.mentions_definition(use.name):
            self.doubt(use, symbol, f"assigned, and {library.dist} does not define it there")
            return
        self.report(use, symbol, "patch-without-effect", f"{library.dist} neither defines nor reads {use.name}")

    def _replaced(self, use: Use, value: Value) -> None:
        """Whether a consumer function fits in the place of an upstream method."""
        assert value.answer is not None
        library = self.world.owner(value.answer.path)
        if use.accepts is None or library is None or value.answer.obj is None:
            return
        found = library.attribute(value.answer, use.name)
        if found.state != "found" or found.obj is None or found.obj.kind is not griffe.Kind.FUNCTION:
            return
        method = found.obj.parent is not None and found.obj.parent.kind is griffe.Kind.CLASS
        static = "staticmethod" in found.obj.labels
        try:
            signature = of_function(found.obj, method and not static, found.ambiguous)
        except UndecidedError:
            return
        accepts = use.accepts if method and not static else replace(use.accepts, bound=False)
        if not method:
            accepts = replace(use.accepts, bound=False)
        calls = self._own_calls(library, found.obj.module.path, use, method)
        wrong = replacement_misfits(signature, accepts, calls)
        if wrong and wrong[0].problem == "override-demands" and use.name in self.consumer.read_attributes:
            self.doubt(use, found.path, f"{wrong[0].detail}; the consumer calls it itself")
        elif wrong:
            detail = "; ".join(misfit.detail for misfit in wrong)
            self.report(use, found.path or found.obj.path, "override-signature", detail, wrong[0].name)

    def _own_calls(self, library: Library, module: str, use: Use, method: bool) -> list[Shape]:
        """How upstream's own module calls ``self.name(...)``, or ``name(...)`` for a function.

        Calls in methods that the consumer replaces as well do not run.
        """
        record = self.consumer.classes.get(use.context.scope) if use.kind == "override" else None
        if record is not None:
            replaced = set(record.members)
        else:
            replaced = {u.name for u in self.consumer.uses if u.kind == "patch" and u.expr == use.expr}
        file = library.tree.module_file(module)
        if file is None or f"{use.name}(" not in library.tree.text(file).replace(f"def {use.name}(", ""):
            return []
        calls = library.own_calls(module).get(f"self.{use.name}" if method else use.name, [])
        return [shape for caller, shape in calls if not method or caller not in replaced - {use.name}]


def _is_function(value: Value) -> bool:
    answer = value.answer
    return value.kind == "upstream" and answer is not None and answer.obj is not None and (
        answer.obj.kind is griffe.Kind.FUNCTION
    )  # fmt: skip


def _is_value(value: Value) -> bool:
    answer = value.answer
    return value.kind == "upstream" and answer is not None and answer.obj is not None and (
        answer.obj.kind is griffe.Kind.ATTRIBUTE
    )  # fmt: skip
