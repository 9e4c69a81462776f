"""Read a whole consumer: every file once, whatever versions it is then checked against."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from pathlib import Path

from ..trees import UnreadableError, parse, read_text, source_files
from .expressions import patches_by_variable
from .symbols import Attr, Call, Expr, Name, Options, Ref, SelfOf
from .uses import Consumer, ConsumerFunction
from .walk import Function, Settings, Walker, helper_functions

MAX_FOLLOW = 20


def read_consumer(dist: str, version: str, root: Path, folders: Iterable[Path], roots: Mapping[str, str]) -> Consumer:
    """Read the Python files below ``folders``.

    Args:
        dist, version: what the consumer is called in the report.
        root: folder that file names and module names are relative to.
        folders: where to look.
        roots: distribution by import root, of all upstreams that may be audited.
    """
    consumer = Consumer(dist, version)
    words = tuple({path.split(".")[0] for path in roots})
    parsed: list[tuple[str, bool, str, ast.Module, str]] = []
    helpers: dict[str, Function] = {}
    for file in (file for folder in folders for file in source_files(folder)):
        name = file.relative_to(root).as_posix()
        consumer.files += 1
        try:
            text = read_text(file)
            if not any(word in text for word in words):
                continue
            tree = parse(text)
        except UnreadableError as error:
            consumer.unread.append((name, str(error)))
            continue
        module, is_package = module_name(name)
        helpers.update(helper_functions(module, tree))
        parsed.append((module, is_package, name, tree, text))
    tops = frozenset({*words, *(module.split(".")[0] for module, *_ in parsed)})
    settings = Settings(dict(roots), helpers, tops, frozenset(words))
    for module, is_package, name, tree, text in parsed:
        try:
            walker = Walker(module, is_package, name, consumer, settings)
            walker.lines = text.splitlines()
            walker.run(tree, "patch(" in text and patches_by_variable(tree))
        except RecursionError:
            consumer.unread.append((name, "nested too deeply"))
    link(consumer)
    return consumer


def module_name(file: str) -> tuple[str, bool]:
    """Dotted module name of a file below the root, and whether it is a package."""
    parts = file[: -len(".py")].split("/")
    if parts[-1] == "__init__":
        return ".".join(parts[:-1]) or "__init__", True
    return ".".join(parts), False


def link(consumer: Consumer) -> None:
    """Hand what calls pass to the parameters of the consumer's own functions."""
    for site in consumer.calls:
        function, skip = _callee(consumer, site.callee)
        if function is None:
            continue
        names = function.accepts.positional[skip:]
        for name, value in [*zip(names, site.arguments, strict=False), *site.keywords]:
            function.passed.setdefault(name, []).append(value)
    consumer.calls.clear()


def _callee(consumer: Consumer, expr: Expr) -> tuple[ConsumerFunction | None, int]:
    """The consumer function that an expression calls, and how many parameters are bound before."""
    while isinstance(expr, Ref):
        expr = expr.value
    if isinstance(expr, Attr):
        base = expr.base
        while isinstance(base, Ref):
            base = base.value
        if isinstance(base, SelfOf):
            return consumer.functions.get(member_path(consumer, base.cls, expr.name) or ""), 1
        if isinstance(base, Name):
            return _named(consumer, f"{base.path}.{expr.name}")
        if isinstance(base, Call) and isinstance(base.func, Name):
            cls = own_path(consumer, base.func.path)
            if cls in consumer.classes:
                return consumer.functions.get(member_path(consumer, cls, expr.name) or ""), 1
        return None, 0
    if isinstance(expr, Name):
        return _named(consumer, expr.path)
    return None, 0


def _named(consumer: Consumer, path: str) -> tuple[ConsumerFunction | None, int]:
    own = own_path(consumer, path)
    if own in consumer.classes:
        return consumer.functions.get(member_path(consumer, own, "__init__") or ""), 1
    return consumer.functions.get(own), 0


def own_path(consumer: Consumer, path: str) -> str:
    """Follow the consumer's own re-exports; a path outside the consumer is returned as it is."""
    for _ in range(MAX_FOLLOW):
        if path in consumer.classes or path in consumer.functions or path in consumer.modules:
            return path
        module, _, name = path.rpartition(".")
        value = consumer.modules.get(module, {}).get(name)
        while isinstance(value, Ref):
            value = value.value
        if not isinstance(value, Name) or value.path == path:
            return path
        path = value.path
    return path


def member_path(consumer: Consumer, cls: str, name: str, depth: int = 0) -> str | None:
    """Dotted path of a method, inherited ones within the consumer too."""
    record = consumer.classes.get(cls)
    if record is None or depth > MAX_FOLLOW:
        return None
    if f"{cls}.{name}" in consumer.functions:
        return f"{cls}.{name}"
    for base in record.bases:
        for item in base.items if isinstance(base, Options) else (base,):
            if isinstance(item, Name):
                found = member_path(consumer, own_path(consumer, item.path), name, depth + 1)
                if found is not None:
                    return found
    return None
