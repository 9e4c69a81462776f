"""Feature tests: on the imported module, and (for reports) on its source without importing it."""

from __future__ import annotations

import ast
from pathlib import Path
from types import ModuleType

from verl_compat.records import Feature, Has, Lacks, Test, dotted_get
from verl_compat.refs import resolve


def holds(feature: Feature, module: ModuleType) -> bool:
    """Evaluate a feature test on the imported target."""
    match feature:
        case Lacks(paths=paths):
            return not all(_present(module, path) for path in paths)
        case Has(paths=paths):
            return all(_present(module, path) for path in paths)
        case Test(reference=reference):
            return bool(resolve(reference)(module))


def holds_in_source(feature: Feature, file: Path) -> bool | None:
    """Evaluate a feature test on a source file; None where only the imported module can tell."""
    if isinstance(feature, Test):
        return None
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return None
    present = [_in_source(tree.body, path.split(".")) for path in feature.paths]
    if None in present:
        return None
    return all(present) is isinstance(feature, Has)


def _present(module: ModuleType, path: str) -> bool:
    try:
        dotted_get(module, path)
    except AttributeError:
        return False
    return True


def _in_source(body: list[ast.stmt], parts: list[str]) -> bool | None:
    """Whether a dotted path is bound in a body; None when a base class or a star import may bind it."""
    for node in body:
        if parts[0] not in _bound(node):
            continue
        if len(parts) == 1:
            return True
        if not isinstance(node, ast.ClassDef):
            return None
        return _in_source(node.body, parts[1:]) or (None if node.bases else False)
    return None if any(isinstance(node, ast.ImportFrom) and node.names[0].name == "*" for node in body) else False


def _bound(node: ast.stmt) -> set[str]:
    """The names that a statement binds, looking into ``if`` and ``try``."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return {name}
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            return {(alias.asname or alias.name).partition(".")[0] for alias in names}
        case ast.Assign() | ast.AnnAssign() | ast.AugAssign():
            return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name) and _stored(inner)}
        case ast.If() | ast.Try() | ast.With():
            children = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)]
            for handler in getattr(node, "handlers", []):
                children += handler.body
            return {name for child in children for name in _bound(child)}
        case _:
            return set()


def _stored(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Store)
