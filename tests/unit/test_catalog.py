"""The command that generates: it reads the checkout that it is given, whatever is installed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NEW = "core_made_up"
RECORD = f'''
from verl_compat.records import Adapter, Add, Lacks@MORE@

ADAPTER = Adapter(
    id="{NEW}", kind="backport", summary="made up", target="megatron.core.made_up",
    applies={{"megatron-core": "<1"}}, tested=(), needed=(Lacks("new"),),
    patches=(Add("new", "os:getcwd"),), why="made up", links=("https://example.invalid/1",),
    retire_when={{"megatron-core": ">=1"}},
)
'''


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of this tree that is not the installed one."""
    for folder in ("compat", "adapters"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "README.md", tmp_path)
    return tmp_path


def generate(*args: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "verl_compat.catalog", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def index(checkout: Path) -> str:
    return (checkout / "adapters" / "__init__.py").read_text()


def test_a_new_record_enters_the_index_and_the_table_at_once(checkout: Path) -> None:
    """Also when it is in them already: the installed copy, which does not know it, would take it out."""
    (checkout / "adapters" / f"{NEW}.py").write_text(RECORD.replace("@MORE@", ""))
    assert generate("--check", checkout).returncode == 1
    for _turn in range(2):
        assert generate(checkout).returncode == 0
        assert f'"megatron.core.made_up": ("{NEW}",),' in index(checkout)
        assert f"[`{NEW}`](adapters/{NEW}.py)" in (checkout / "README.md").read_text()
    assert generate("--check", checkout).returncode == 0


def test_a_record_that_is_gone_leaves_the_index(checkout: Path) -> None:
    gone = next(f for f in sorted((checkout / "adapters").glob("core_*.py")) if f.stem in index(checkout))
    gone.unlink()
    assert generate(checkout).returncode == 0
    assert gone.stem not in index(checkout)


def test_a_record_may_use_what_only_the_checkout_has(checkout: Path) -> None:
    with (checkout / "compat" / "records.py").open("a") as file:
        file.write("\n\nclass OnlyHere:\n    pass\n")
    (checkout / "adapters" / f"{NEW}.py").write_text(RECORD.replace("@MORE@", ", OnlyHere"))
    assert generate(checkout).returncode == 0
    assert NEW in index(checkout)


def test_an_index_with_the_marks_of_a_merge_is_repaired(checkout: Path) -> None:
    right = index(checkout)
    (checkout / "adapters" / "__init__.py").write_text(f"<<<<<<< ours\n{right}=======\n>>>>>>> theirs\n")
    assert generate(checkout).returncode == 0
    assert index(checkout) == right


def test_what_is_no_checkout_is_refused(tmp_path: Path) -> None:
    done = generate(tmp_path)
    assert done.returncode == 2
    assert "no source checkout" in done.stderr
