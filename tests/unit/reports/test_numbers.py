"""Every report is found by its number, and the documentation says the same as the records."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from verl_compat import cli
from verl_compat.lookup import find
from verl_compat.registry import all_adapters
from verl_compat.shims import version_pairs

ROOT = Path(__file__).parents[3]
NUMBER = re.compile(r"[A-Za-z][\w-]*#\d+")
DOCS = (ROOT / "docs" / "bug-reports.md").read_text()
ROWS = [line for line in DOCS.splitlines() if line.startswith("|") and NUMBER.search(line.split("|")[1])]
NUMBERS = [
    (number, set(re.findall(r"`([a-z0-9_]+)`", row.split("|")[4])))
    for row in ROWS
    for number in NUMBER.findall(row.split("|")[1])
]
OURS = [(number, ids) for number, ids in NUMBERS if ids]


@pytest.mark.parametrize(("number", "ids"), OURS, ids=[f"{number}" for number, _ in OURS])
def test_number_leads_to_the_adapters_that_the_documentation_names(number, ids):
    assert ids & {adapter.id for adapter in find(number)}


@pytest.mark.parametrize("adapter", all_adapters(), ids=lambda adapter: adapter.id)
def test_numbers_of_records_are_documented(adapter):
    documented = {number for number, _ in NUMBERS}
    assert {number for number in adapter.reports if not number.startswith("vllm#")} <= documented


def test_adapters_named_in_the_documentation_exist():
    known = {adapter.id for adapter in all_adapters()}
    named = set(re.findall(r"`((?:core|bridge|mbridge|verl|vllm)_[a-z0-9_]+)`", DOCS))
    assert named <= known


@pytest.mark.parametrize("number", ["verl#6936", "VERL#6936", "Megatron-LM#4958"])
def test_explain_by_number(number, capsys):
    assert cli.main(["explain", number]) == 0
    assert find(number)[0].id in capsys.readouterr().out


def test_pair_table_of_the_documentation_is_the_data():
    for bridge, cores in version_pairs.MISSING.items():
        row = next(line for line in DOCS.splitlines() if line.startswith(f"| {bridge} |"))
        assert [int(re.sub(r"\D.*", "", cell.strip(" *"))) for cell in row.split("|")[2:8]] == list(cores.values())


@pytest.mark.parametrize("adapter_id", ["verl_lt_0_9_1_ddp_grad_dtype", "verl_split_stacked_experts"])
def test_numbers_and_names_are_never_changed_unasked(adapter_id):
    (adapter,) = find(adapter_id)
    assert not adapter.default
