"""The resolver's table against the source of real releases: a name is where it says, and only then."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import sources
from conftest import VLLM
from packaging.version import Version

from verl_compat.shims.marlin_resolve import HOMES, ROUTING_TABLES, Home, routing_tables


def module_file(root: Path, module: str) -> Path | None:
    base = root.joinpath(*module.split("."))
    return next((file for file in (base.with_suffix(".py"), base / "__init__.py") if file.exists()), None)


def defined(file: Path) -> set[str]:
    """Names that a module defines or imports at its top level."""
    found: set[str] = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found.update(target.id for target in targets if isinstance(target, ast.Name))
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            found.update((alias.asname or alias.name).split(".")[0] for alias in node.names)
    return found


def said(home: Home, version: str) -> bool:
    """Whether the table says that the name is in this home in this release."""
    low, _, high = home.seen.partition(" - ")
    series = Version(version).release[:2]
    return Version(low).release <= Version(version).release and series <= Version(high or low).release[:2]


@pytest.mark.parametrize("version", VLLM)
@pytest.mark.parametrize("name", HOMES)
def test_a_name_is_in_its_homes_and_the_first_one_wins(name: str, version: str) -> None:
    root = sources.tree("vllm", version)
    found = [home for home in HOMES[name] if (file := module_file(root, home.module)) and name in defined(file)]
    expected = [home for home in HOMES[name] if said(home, version)]
    assert found[:1] == expected[:1]


def layer_methods(root: Path) -> Iterator[str]:
    folder = root / "vllm/model_executor/layers/fused_moe"
    for file in (folder / "layer.py", folder / "routed_experts.py"):
        for node in ast.walk(ast.parse(file.read_text())) if file.exists() else ():
            if isinstance(node, ast.ClassDef):
                yield from (item.name for item in node.body if isinstance(item, ast.FunctionDef))


@pytest.mark.parametrize("version", VLLM)
def test_an_moe_layer_gives_its_routing_tables_under_one_of_two_names(version: str) -> None:
    names = set(layer_methods(sources.tree("vllm", version))) & set(ROUTING_TABLES)
    assert len(names) == 1
    layer = type("Layer", (), {name: lambda self: "tables" for name in names})()
    assert routing_tables(layer) == "tables"
    assert routing_tables(object()) is None
