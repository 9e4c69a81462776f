"""Find packages and read their version text without importing anything.

``importlib.util.find_spec("a.b")`` imports ``a``; the finders themselves are asked instead.
"""

from __future__ import annotations

import ast
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from verl_compat._boot import real_spec


def find_module(name: str) -> ModuleSpec | None:
    """The spec of a dotted name, found without importing its parents; None when absent."""
    loaded = sys.modules.get(name)
    if loaded is not None and getattr(loaded, "__spec__", None) is not None:
        return loaded.__spec__
    path: Any = None
    spec: ModuleSpec | None = None
    parts = name.split(".")
    for depth in range(len(parts)):
        spec = _ask_finders(".".join(parts[: depth + 1]), path)
        if spec is None:
            return None
        path = spec.submodule_search_locations
        if path is None and depth + 1 < len(parts):
            return None
    return spec


def _ask_finders(fullname: str, path: Any) -> ModuleSpec | None:
    try:
        return real_spec(fullname, path, None)
    except Exception:
        return None  # a foreign finder's trouble is not a reason to fail a report


def package_folder(package: str) -> Path | None:
    """The folder of an installed package, or None."""
    spec = find_module(package)
    if spec is None or spec.origin in (None, "built-in", "frozen"):
        return None
    return Path(str(spec.origin)).parent


def source_file(module: str) -> Path | None:
    """The ``.py`` file of a module, or None."""
    spec = find_module(module)
    if spec is None or spec.origin is None or not str(spec.origin).endswith(".py"):
        return None
    return Path(spec.origin)


def read_version_text(folder: Path, files: tuple[str, ...]) -> str | None:
    """The version that a source tree states, from the first of ``files`` that says one."""
    for name in files:
        try:
            text = (folder / name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        found = _version_in_python(text) if name.endswith(".py") else text.strip().splitlines()[:1]
        if found:
            return found if isinstance(found, str) else found[0].strip()
    return None


def _version_in_python(text: str) -> str | None:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return None
    values = dict(_constants(tree))
    for name in ("__version__", "version"):
        if isinstance(values.get(name), str):
            return str(values[name])
    if {"MAJOR", "MINOR", "PATCH"} <= values.keys():
        text = f"{values['MAJOR']}.{values['MINOR']}.{values['PATCH']}"
        return text + str(values.get("PRE_RELEASE") or "")
    return None


def _constants(tree: ast.Module) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for node in tree.body:
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Constant):
            continue
        found += [(target.id, node.value.value) for target in node.targets if isinstance(target, ast.Name)]
    return found
