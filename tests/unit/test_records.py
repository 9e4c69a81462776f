"""The real records: complete, consistent, and with everything that the contract asks of each."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from pathlib import Path

import pytest

from support.world import World
from verl_compat import adapters, catalog
from verl_compat.records import Add, Provide, Register, Upstream
from verl_compat.registry import all_adapters, load, upstreams
from verl_compat.validate import problems

ROOT = Path(__file__).parents[2]
ADAPTERS = catalog.adapters_in_files(ROOT)


def test_records_are_complete_and_share_out_the_releases() -> None:
    assert problems(ADAPTERS, upstreams()) == []


def test_index_and_readme_table_are_current() -> None:
    """``python -m verl_compat.catalog .`` brings them up to date."""
    assert catalog.stale(ROOT) == {}


def test_index_holds_every_record_under_its_target() -> None:
    indexed = {adapter_id: target for target, ids in adapters.TARGETS.items() for adapter_id in ids}
    assert indexed == {adapter.id: adapter.target for adapter in ADAPTERS}


@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda adapter: adapter.id)
def test_id_names_file_test_and_changelog(adapter) -> None:  # type: ignore[no-untyped-def]
    assert (ROOT / "adapters" / f"{adapter.id}.py").is_file()
    assert f"`{adapter.id}`" in (ROOT / "CHANGELOG.md").read_text()
    tests = "\n".join(file.read_text() for file in (ROOT / "tests").rglob("*.py"))
    shims = set(re.findall(r"verl_compat\.shims\.[\w.]+:(\w+)", repr(adapter)))
    names = {adapter.id, *adapter.reports, *shims}
    assert any(re.search(rf"(?<!\w){re.escape(name)}\b", tests) for name in names), f"no test names {sorted(names)}"


@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda adapter: adapter.id)
def test_adapter_files_hold_data_only(adapter) -> None:  # type: ignore[no-untyped-def]
    tree = ast.parse((ROOT / "adapters" / f"{adapter.id}.py").read_text())
    kinds = {type(node).__name__ for node in tree.body}
    assert kinds <= {"Expr", "Import", "ImportFrom", "Assign", "AnnAssign"}


@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda adapter: adapter.id)
def test_references_to_shims_exist(adapter) -> None:  # type: ignore[no-untyped-def]
    """Every ``verl_compat.shims...:name`` is bound in its file (not imported: torch may be absent)."""
    for reference in re.findall(r"verl_compat\.shims\.[\w.]+:\w+", repr(adapter)):
        module, name = reference.split(":")
        text = (ROOT / "shims" / (module.removeprefix("verl_compat.shims.").replace(".", "/") + ".py")).read_text()
        assert re.search(rf"^(def|class) {name}\b|^{name}\b.*=|\"{name}\"", text, re.MULTILINE), reference


def test_unknown_id() -> None:
    with pytest.raises(KeyError, match="no_such"):
        load("no_such")


KNOWN = {"up": Upstream("up", "up", (), ("0.3.0", "0.4.2", "0.5.0"))}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"why": ""}, "field why is empty"),
        ({"links": ()}, "field links is empty"),
        ({"patches": ()}, "field patches is empty"),
        ({"kind": "magic"}, "kind 'magic'"),
        ({"applies": {"up": "less than 5"}}, "no version specifier"),
        ({"applies": {"elsewhere": "<1"}}, "unknown distribution 'elsewhere'"),
        ({"target": "other.leaf"}, "belongs to no known upstream"),
        ({"target": "not a module"}, "no module name"),
        ({"retire_when": {}}, "keep does not say why"),
        ({"retire_when": {"up": ">=0.4"}}, "0.4.2 is both"),
        ({"retire_when": {"up": ">=0.6"}}, "0.5.0 is neither"),
        ({"tested": ({"up": "0.5.0"},)}, "lies outside"),
        ({"tested": ({"up": "?"},)}, "no readable version"),
        ({"id": "Not-a-file"}, "no file name"),
    ],
)
def test_bad_records_are_found(world: World, change: dict[str, object], problem: str) -> None:
    record = replace(world.backport(), **change)  # type: ignore[arg-type]
    assert problem in "\n".join(problems([record], KNOWN))


def test_overlap_and_hole_between_siblings(world: World) -> None:
    first = world.backport()
    free = {"retire_when": {}, "keep": "test", "tested": ()}
    twin = replace(first, id="up_twin")
    late = replace(first, id="up_late", applies={"up": ">=0.5"}, **free)  # type: ignore[arg-type]
    early = replace(first, id="up_early", applies={"up": "<0.4"}, **free)  # type: ignore[arg-type]
    assert problems([first, late], KNOWN) == []
    assert "both set up.leaf.new" in "\n".join(problems([first, twin], KNOWN))
    assert "0.4.2 lies in a hole" in "\n".join(problems([early, late], KNOWN))


def test_a_record_is_hashable_data(world: World) -> None:
    record = world.backport()
    with pytest.raises(AttributeError):
        record.id = "other"  # type: ignore[misc]
    assert record.family == "up"
    assert [type(patch) for patch in (Add("a", "b:c"), Register("a", "b", ()), Provide({}))] == [Add, Register, Provide]


def test_all_adapters_are_sorted_and_unique() -> None:
    ids = [adapter.id for adapter in all_adapters()]
    assert ids == sorted(set(ids))
