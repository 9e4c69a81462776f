"""Asynchronous saves with real megatron-core and torch's distributed checkpoint, gloo, CPU.

The steps are those of verl's checkpoint manager: save, add a finalize function, schedule on
``async_calls``, go on training, finalise.  Without the adapters the import of ``async_calls`` fails
from core 0.17 on, and core looks for nvidia-resiliency-ext.
"""

from __future__ import annotations

import inspect

import pytest
import torch
from packaging.version import Version

import verl_compat
from verl_compat.shims.async_save import keep_request, kept_calls

# stand-in for verl.utils.megatron.dist_checkpointing: verl's own module needs all of verl's dependencies
VERL_SAVE = """
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy

    def save_dist_checkpointing(sharded_state_dict, ckpt_path, async_save=False, content_metadata=None):
        strategy = TorchDistSaveShardedStrategy(backend="torch_dist", version=1)
        return dist_checkpointing.save(
            sharded_state_dict, ckpt_path, sharded_strategy=strategy, async_sharded_save=async_save,
            validate_access_integrity=True,
        )
"""


@pytest.fixture
def save(stubs):
    stubs.dist("verl", "0.9.1", utils__megatron__dist_checkpointing=VERL_SAVE)
    return stubs.load("verl.utils.megatron.dist_checkpointing").save_dist_checkpointing


@pytest.fixture
def state():
    from megatron.core.dist_checkpointing import ShardedTensor

    return {"weight": ShardedTensor.from_rank_offsets("weight", torch.arange(12.0).reshape(3, 4))}


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "ckpt"
    path.mkdir()
    return path


def loaded(folder, state):
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing import ShardedTensor

    empty = {"weight": ShardedTensor.from_rank_offsets("weight", torch.zeros(3, 4))}
    return dist_checkpointing.load(empty, folder)["weight"]


def test_names_added_only_where_core_dropped_them(core):
    from megatron.core.dist_checkpointing.strategies.base import async_calls

    provided = verl_compat.status().outcome("core_ge_0_19_async_calls")
    added = verl_compat.status().outcome("core_0_17_async_calls")
    assert (provided == "applied") is (core >= Version("0.19"))
    assert (added == "applied") is (Version("0.17") <= core < Version("0.19"))
    home = type(async_calls).__module__
    assert home.startswith("megatron.core." if core < Version("0.17") else "verl_compat.shims.")


@pytest.mark.usefixtures("gloo")
def test_finalised_exactly_once(save, state, folder):
    """Not before the write is done, and not a second time."""
    from megatron.core.dist_checkpointing.strategies.base import async_calls

    finalised: list[str] = []
    request = save(state, str(folder), async_save=True)
    request.add_finalize_fn(lambda: finalised.append("tracker"))
    async_calls.schedule_async_request(request)
    assert async_calls.get_num_unfinalized_calls() == 1
    assert finalised == []
    async_calls.maybe_finalize_async_calls(blocking=True)
    assert finalised == ["tracker"]
    async_calls.maybe_finalize_async_calls(blocking=True)
    assert finalised == ["tracker"]
    assert async_calls.get_num_unfinalized_calls() == 0
    assert torch.equal(loaded(folder, state), torch.arange(12.0).reshape(3, 4))


@pytest.mark.usefixtures("gloo")
def test_verl_0_8_drops_its_queue_and_the_save_is_finalised_all_the_same(stubs, state, folder):
    """`verl_0_8_async_save_queue`: verl 0.8 calls AsyncCallsQueue(persistent=False).schedule_async_request(request)
    and keeps nothing."""
    from megatron.core.dist_checkpointing.strategies.async_utils import AsyncCallsQueue

    manager = "from verl.utils.megatron.dist_checkpointing import save_dist_checkpointing\n"
    stubs.dist(
        "verl",
        "0.8.0",
        utils__megatron__dist_checkpointing=VERL_SAVE,
        utils__checkpoint__megatron_checkpoint_manager=manager,
    )
    save = stubs.load("verl.utils.checkpoint.megatron_checkpoint_manager").save_dist_checkpointing
    finalised: list[str] = []
    request = save(state, str(folder), async_save=True)
    request.add_finalize_fn(lambda: finalised.append("tracker"))
    AsyncCallsQueue(persistent=False).schedule_async_request(request)
    kept_calls().maybe_finalize_async_calls(blocking=True)
    kept_calls().maybe_finalize_async_calls(blocking=True)
    assert finalised == ["tracker"]
    assert (folder / "metadata.json").exists()
    assert torch.equal(loaded(folder, state), torch.arange(12.0).reshape(3, 4))


@pytest.mark.usefixtures("gloo")
def test_synchronous_save_is_untouched(save, state, folder):
    assert keep_request(save, state, str(folder)) is None
    assert torch.equal(loaded(folder, state), torch.arange(12.0).reshape(3, 4))


@pytest.mark.usefixtures("gloo")
def test_without_the_adapter_core_wants_nvidia_resiliency_ext(core, state, folder, monkeypatch):
    """The fault that `verl_async_save_strategy` is for; before 0.17 there is none."""
    from megatron.core import dist_checkpointing

    if core < Version("0.17"):
        assert "async_strategy" not in inspect.signature(dist_checkpointing.save).parameters
        return
    with pytest.raises(ModuleNotFoundError, match="nvidia-resiliency-ext"):
        dist_checkpointing.save(state, str(folder), async_sharded_save=True)


def test_strategy_is_chosen_only_where_core_would_choose_nvrx(core, save, stubs):
    expected = "applied" if core >= Version("0.17") else "out-of-range"
    assert stubs.outcome("verl_async_save_strategy") == expected
