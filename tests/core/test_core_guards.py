"""Megatron-FSDP's safe_get_rank (Megatron-LM#4958) and np.product (rllm#498) on real megatron-core."""

from __future__ import annotations

import importlib
import inspect
import pickle

import numpy as np
import pytest
from packaging.version import Version

import verl_compat

PRODUCT_USERS = ("mapping", "validation", "exchange_utils")


@pytest.fixture
def fsdp_utils():
    return importlib.import_module("megatron.core.distributed.fsdp.src.megatron_fsdp.utils")


@pytest.mark.parametrize(("environment", "rank"), [("3", 3), (None, 0), ("no number", 0)])
def test_safe_get_rank_before_torch_distributed(core, fsdp_utils, monkeypatch, environment, rank):
    if core < Version("0.17"):
        assert not hasattr(fsdp_utils, "safe_get_rank")
        assert verl_compat.status().outcome("core_0_17_fsdp_safe_get_rank") in ("not-needed", "out-of-range")
        return
    monkeypatch.delenv("RANK", raising=False)
    if environment is not None:
        monkeypatch.setenv("RANK", environment)
    assert fsdp_utils.safe_get_rank() == rank


def test_import_of_os_is_added_where_it_is_missing(core, fsdp_utils):
    expected = "applied" if Version("0.17") <= core < Version("0.19") else "not-needed"
    outcome = verl_compat.status().outcome("core_0_17_fsdp_safe_get_rank")
    assert outcome == expected or (expected == "not-needed" and outcome == "out-of-range")


@pytest.mark.parametrize("name", PRODUCT_USERS)
def test_np_product_in_the_modules_that_use_it(core, name):
    module = importlib.import_module(f"megatron.core.dist_checkpointing.{name}")
    outcome = verl_compat.status().outcome(f"core_lt_0_16_np_product_{name}")
    if core >= Version("0.16") or Version(np.__version__) < Version("2"):
        assert outcome in ("not-needed", "out-of-range")
        assert getattr(module, "np", np) is np
        return
    assert outcome == "applied"
    assert module.np.product((3, 4)) == 12
    assert module.np.zeros is np.zeros
    assert inspect.ismodule(module.np)
    assert not hasattr(np, "product")


def test_shard_size_and_sharded_tensors_still_work():
    """core 0.14 and 0.15: exchange_utils._shard_size calls np.product."""
    import torch
    from megatron.core.dist_checkpointing import ShardedTensor
    from megatron.core.dist_checkpointing.exchange_utils import _shard_size

    tensor = ShardedTensor.from_rank_offsets("weight", torch.zeros(3, 4))
    assert _shard_size(tensor) == 48
    assert pickle.loads(pickle.dumps(tensor.without_data())).global_shape == (3, 4)
