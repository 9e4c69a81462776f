"""The dependency rule of the design: who may import whom, and what starting costs."""

from __future__ import annotations

import ast
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = {"torch", "megatron", "vllm", "verl", "mbridge", "transformers", "ray", "numpy", "modelopt"}


def imports(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    if isinstance(node, ast.ImportFrom) and node.module:
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def all_imports(file: Path) -> set[str]:
    return {name for node in ast.walk(ast.parse(file.read_text())) for name in imports(node)}


def top_imports(file: Path) -> set[str]:
    tree = ast.parse(file.read_text())
    return {name for node in tree.body for name in imports(node)}


@pytest.mark.parametrize("file", sorted((ROOT / "shims").rglob("*.py")), ids=lambda file: file.name)
def test_shims_import_no_engine_no_adapters_and_no_upstream_at_the_top(file: Path) -> None:
    ours = {name for name in all_imports(file) if name.startswith("verl_compat.")}
    # integrity is the one door back: what a check finds is told, kept and obeyed in strict mode by the engine
    assert all(name.startswith(("verl_compat.shims", "verl_compat.integrity")) for name in ours), ours
    assert not {name.partition(".")[0] for name in top_imports(file)} & HEAVY


@pytest.mark.parametrize("file", sorted((ROOT / "adapters").rglob("*.py")), ids=lambda file: file.name)
def test_adapters_import_record_types_only(file: Path) -> None:
    assert all(name.startswith("verl_compat.records") for name in all_imports(file))


@pytest.mark.parametrize("file", sorted((ROOT / "compat").rglob("*.py")), ids=lambda file: file.name)
def test_engine_imports_no_adapter_module_and_no_upstream(file: Path) -> None:
    names = all_imports(file)
    assert not {name.partition(".")[0] for name in names} & HEAVY
    allowed = {"verl_compat.adapters", "verl_compat.adapters.TARGETS"}
    allowed |= {
        name for name in names if name.startswith(("verl_compat.adapters.public.", "verl_compat.adapters.upstreams."))
    }
    assert {name for name in names if name.startswith("verl_compat.adapters")} <= allowed


@pytest.mark.parametrize("file", sorted((ROOT / "compat").rglob("*.py")), ids=lambda file: file.name)
def test_engine_names_no_upstream(file: Path) -> None:
    """Code, that is: docstrings may give examples."""
    tree = ast.parse(file.read_text())
    docs = {id(n.body[0].value) for n in ast.walk(tree) if _has_docstring(n)}
    texts = [
        n.value
        for n in ast.walk(tree)
        if isinstance(n, ast.Constant) and isinstance(n.value, str) and id(n) not in docs
    ]
    for text in texts:
        for upstream in ("megatron", "vllm", "mbridge", "transformers"):
            assert upstream not in text.lower(), text


def _has_docstring(node: ast.AST) -> bool:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    return isinstance(node, kinds) and bool(node.body) and isinstance(node.body[0], ast.Expr)


def run(code: str, *flags: str) -> str:
    done = subprocess.run([sys.executable, *flags, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""
    return done.stdout


def test_start_loads_no_module() -> None:
    """The line of the ``.pth`` loads nothing, neither of ours nor of the library.

    Only that line is looked at: what the finder of an editable install or other packages' lines load is theirs.
    """
    (line,) = (Path(sysconfig.get_path("purelib")) / "verl_compat.pth").read_text().splitlines()
    code = f"import sys, site; before = set(sys.modules); exec({line!r}); print(set(sys.modules) - before)"
    assert run(code, "-S").strip() == "set()"
    assert run("import sys; print([name for name in sys.modules if name.startswith('verl_compat')])").strip() == "[]"


def test_no_adapter_module_is_loaded_before_its_target() -> None:
    code = (
        "import sys, verl_compat; verl_compat.activate()\n"
        "from verl_compat import adapters\n"
        "print([m for m in sys.modules if m.startswith('verl_compat.adapters.')])"
    )
    assert run(code).strip() == "[]"


def test_shims_import_with_nothing_installed() -> None:
    names = [f"verl_compat.shims.{file.stem}" for file in (ROOT / "shims").glob("*.py") if file.stem != "__init__"]
    blocked = f"import sys, importlib\nfor n in {sorted(HEAVY)}: sys.modules[n] = None\n"
    run(blocked + f"for n in {names}: importlib.import_module(n)")
