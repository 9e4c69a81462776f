"""Adapter checkpoints converted between verl 0.7's format and that of 0.8 (PP=2), on each Bridge release."""

from __future__ import annotations

import pytest

from verl_compat.shims.adapter_formats import DISTRIBUTED, RANK_FILES


@pytest.fixture(params=[0, 1])
def result(config_worker, request):
    return config_worker("adapter_part")[request.param]


def test_old_to_new(result):
    assert result["adapters"] == 2 * 2 * 2  # two layers a rank, two targets, two matrices
    assert result["to"] == result["new format"] == DISTRIBUTED
    assert result["loaded from old"] is True
    assert result["Bridge loads it"] is True


def test_new_to_old(result):
    assert result["back to"] == RANK_FILES
    assert result["loaded from new"] is True
    assert result["same file"] is True
    assert result["files"] == ["mp_rank_00_000_adapter.pt", "mp_rank_00_001_adapter.pt"]


def test_errors(result):
    assert "is not empty: give a new directory" in result["not empty"]
    assert "holds neither per-rank .pt files" in result["unknown"]
    assert result["chunks"].startswith("NotImplementedError: got 2 model chunks")
    assert result["one rank differs"].startswith("AdapterFormatError: the adapter checkpoint does not fit")
    assert "(rank 1): 8 adapter names" in result["one rank differs"]
