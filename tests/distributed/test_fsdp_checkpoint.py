"""Megatron-FSDP checkpoints on two ranks, from each Bridge release."""

from __future__ import annotations

import pytest
from packaging.version import Version

from support.versions import BRIDGE


@pytest.fixture(params=[0, 1])
def result(config_worker, request):
    return config_worker("fsdp_part")[request.param]


def test_which_path_ran(result):
    assert result["native"] is (Version("0.5") <= BRIDGE)
    assert result["can load"] is (Version("0.4") <= BRIDGE)


def test_saving_writes_a_checkpoint_and_leaves_the_state_dict_alone(result):
    assert ".metadata" in result["files"]
    if not result["native"]:
        # Bridge's preprocessing itself drops _extra_state from the model's own dict, as in 0.5
        assert result["mutated by saving"] == {"model": ["decoder._extra_state"], "optimizer": [], "rng_state": []}


def test_round_trip_and_overwriting(result):
    if not result["can load"]:
        pytest.skip("Bridge 0.3 cannot load from a directory")
    assert result["first"] is True
    assert result["second"] is True


def test_overwriting_keeps_foreign_files_and_drops_stale_shards(result):
    if result["native"]:
        pytest.skip("Bridge's own saving overwrites in place")
    assert "notes.txt" in result["files again"]
    assert "__9_0.distcp" not in result["files again"]


def test_failed_save_loses_nothing(result):
    if result["native"]:
        pytest.skip("Bridge's own saving overwrites in place")
    assert result["full disk"].startswith("CheckpointSaveError: the checkpoint was not saved to ")
    assert "rank 1: " in result["full disk"]
    assert "File too large" in result["full disk"]
    assert "What was there before is untouched" in result["full disk"]
    assert result["files after failure"] == result["files again"]
    assert result["beside"] == ["dist_ckpt"]
    assert result["still second"] is (True if result["can load"] else None)


REFUSED = "cannot load a Megatron-FSDP checkpoint from a given directory"


@pytest.mark.parametrize(
    ("case", "text"),
    [
        ("no directory", "FileNotFoundError: Megatron-FSDP checkpoint not found: there is no directory "),
        ("empty directory", "holds no torch distributed checkpoint (no file .metadata; it holds nothing)"),
        ("one rank only", "seen so by rank 0."),
        ("no _model", "MissingModelError: sharded_state_dict lacks '_model'"),
        ("no template", "RuntimeError: a Megatron-FSDP checkpoint is loaded into a template"),
        ("no Megatron-FSDP: load", "RuntimeError: cannot load a Megatron-FSDP checkpoint: this megatron-core"),
        ("rank0", "no error"),
    ],
)
def test_loading_errors(result, case, text):
    if result["native"]:
        pytest.skip("Bridge's own errors are not ours to test")
    assert (text if result["can load"] else REFUSED) in result[case]


def test_saving_errors(result):
    if result["native"]:
        pytest.skip("Bridge's own errors are not ours to test")
    assert "RuntimeError: cannot save a Megatron-FSDP checkpoint" in result["no Megatron-FSDP: save"]
    assert "MissingModelError: a Megatron-FSDP checkpoint needs the entry 'model'" in result["no model to save"]
    assert "checkpoint.save_contents" in result["no model to save"]
