"""Cases in which ranks see different things, stop half-way, or the surroundings change."""

from __future__ import annotations

import itertools
from typing import Any

from support.plan import Counting, Layout, assert_equal, fresh, outcome, parallel_sizes, peft_hook, stream, train_step

PP2 = Layout("pp2_hazard", 2, parallel={"pipeline_model_parallel_size": 2})
TP2 = Layout("tp2_hazard", 2, parallel={"tensor_model_parallel_size": 2})
PP2_TP2 = Layout("pp2_tp2_hazard", 4, parallel={"pipeline_model_parallel_size": 2, "tensor_model_parallel_size": 2})


def _rank() -> int:
    import torch.distributed as dist

    return dist.get_rank()


def check(bridge: Any, model: Any, what: str, mode: str = "merged") -> int:
    """One export equals Bridge's own; returns its object collectives."""
    with Counting() as count:
        actual = outcome(lambda: stream(bridge, model, mode))
    assert actual[1] is None, actual[1]
    assert_equal(actual, fresh(bridge, model, mode), what)
    return count.calls


def settle(bridge: Any, model: Any, mode: str = "merged") -> None:
    """Two exports: planned, then reused."""
    check(bridge, model, "settle 1", mode)
    assert check(bridge, model, "settle 2", mode) == 0


def reasons() -> dict[str, int]:
    from verl_compat import plan_cache

    return plan_cache.stats().reasons


def replace_parameter(module: Any, name: str = "weight") -> None:
    """Another Parameter object of the same name, shape and dtype, with other values."""
    import torch

    old = getattr(module, name)
    new = torch.nn.Parameter(torch.randn_like(old))
    for attribute in ("tensor_model_parallel", "partition_dim", "partition_stride", "allreduce"):
        if hasattr(old, attribute):
            setattr(new, attribute, getattr(old, attribute))
    setattr(module, name, new)


def one_rank_changes(bridge: Any, model: Any, layout: Layout, thorough: bool) -> None:
    """A parameter replaced on one rank only: all ranks plan anew, and nobody hangs."""
    import torch.distributed as dist

    settle(bridge, model)
    for changed in range(dist.get_world_size()) if thorough else (dist.get_world_size() - 1,):
        before = reasons()
        if _rank() == changed:
            replace_parameter(model[0].decoder.layers[0].mlp.linear_fc2)
        planned = check(bridge, model, f"changed on rank {changed}")
        assert planned > 0 or layout is TP2, "reused a plan that a peer could not"
        reason = "modules or parameters" if _rank() == changed else "a peer rank"
        assert reasons().get(reason, 0) == before.get(reason, 0) + 1, (reason, before, reasons())
        assert check(bridge, model, "after the change") == 0


def dtype_changes(bridge: Any, model: Any, layout: Layout, thorough: bool) -> None:
    """The owner's dtype is in its peers' caches; a list kept by hand sends bf16 into fp32 buffers."""
    import torch

    settle(bridge, model)
    for parameter in model[0].parameters():
        parameter.data = parameter.data.to(torch.bfloat16)
    assert check(bridge, model, "bf16") > 0
    assert reasons().get("dtypes") == 1, reasons()
    train_step(model, seed=7)
    assert check(bridge, model, "bf16 again") == 0


def data_moves(bridge: Any, model: Any, layout: Layout, thorough: bool) -> None:
    """verl's offload and reload: storage and param.data change, objects do not; plans are reused."""
    settle(bridge, model)
    for parameter in model[0].parameters():
        saved = parameter.data.clone()
        parameter.data.untyped_storage().resize_(0)
        parameter.data = saved
    assert check(bridge, model, "reloaded") == 0


def stops_half_way(bridge: Any, model: Any, layout: Layout, thorough: bool) -> None:
    """Exports that all ranks give up after three tensors, with and without a kept plan."""
    for settled in (False, True):
        if settled:
            settle(bridge, model)
        started = stream(bridge, model, "merged")
        list(itertools.islice(started, 3))
        started.close()
        assert check(bridge, model, "after giving up") > 0
        assert reasons()["unfinished export"] == 1 + settled, reasons()
    suspended = stream(bridge, model, "merged")  # never closed: its plan is in use
    next(suspended)
    assert check(bridge, model, "beside a suspended export") > 0
    del suspended


def one_rank_stops_early(bridge: Any, model: Any, layout: Layout, thorough: bool) -> None:
    """One rank takes all tensors but does not run its generator to the end; another fails at the last."""
    total = len(outcome(lambda: stream(bridge, model, "merged"))[0])
    for _ in range(2):
        started = stream(bridge, model, "merged")
        if _rank() == 0:
            assert sum(1 for _ in started) == total
        else:
            assert len(list(itertools.islice(started, total))) == total
        del started
        assert check(bridge, model, "after an early stop") > 0
    check(bridge, model, "and once more")


def consumer_fails(bridge: Any, model: Any, layout: Layout, thorough: bool) -> None:
    """An exception in the consumer at the same tensor on all ranks, kept alive by its traceback."""
    settle(bridge, model)
    try:
        for number, _ in enumerate(stream(bridge, model, "merged")):
            if number == 4:
                raise RuntimeError("out of memory")
    except RuntimeError as error:
        kept = error  # its traceback holds this frame, and that the suspended generator
        assert check(bridge, model, "after an exception") > 0
        del kept
    assert check(bridge, model, "later") == 0


def one_rank_disabled(bridge: Any, model: Any, layout: Layout, thorough: bool) -> None:
    """The cache switched off on one rank only: all plan anew."""
    from verl_compat import plan_cache

    settle(bridge, model)
    if _rank() == 0:
        with plan_cache.disabled():
            planned = check(bridge, model, "disabled here")
    else:
        planned = check(bridge, model, "disabled there")
    assert planned > 0
    assert check(bridge, model, "enabled again") == 0


def ranks_differ_in_mode(bridge: Any, model: Any, layout: Layout, thorough: bool) -> None:
    """Rank 0 merges, the other does not (no adapters, PP=1: Bridge itself allows it)."""
    mode = "merged" if _rank() == 0 else "unmerged"
    settle(bridge, model, "merged")
    settle(bridge, model, "unmerged")
    check(bridge, model, "different modes", mode)
    assert reasons()["ranks differ in mode"] == 1, reasons()
    assert check(bridge, model, "same mode again", "merged") == 0


def groups_made_anew(bridge: Any, model: Any, layout: Layout, thorough: bool) -> None:
    """Model parallelism destroyed and initialised again: kept mappings hold dead groups."""
    from megatron.core import parallel_state as mpu

    settle(bridge, model)
    mpu.destroy_model_parallel()
    mpu.initialize_model_parallel(**parallel_sizes(layout))
    fresh_groups = _refresh_collection(model)
    check(bridge, model, "new groups")
    assert reasons().get("process groups") == 1, (fresh_groups, reasons())
    assert check(bridge, model, "new groups again") == 0


def _refresh_collection(model: Any) -> int:
    """Give modules that captured a process group collection the new one, as a re-build would."""
    from megatron.core.process_groups_config import ProcessGroupCollection

    count = 0
    for module in model[0].modules():
        for name, value in list(vars(module).items()):
            if isinstance(value, ProcessGroupCollection):
                setattr(module, name, ProcessGroupCollection.use_mpu_process_groups())
                count += 1
    return count


def adapters_come_and_change(bridge: Any, model: Any, layout: Layout, thorough: bool) -> None:
    """LoRA added after planning, then its scale changed on all ranks."""
    settle(bridge, model)
    peft_hook("lora")(model)
    train_step(model, seed=3)
    assert check(bridge, model, "with adapters") > 0
    assert check(bridge, model, "with adapters again") == 0
    check(bridge, model, "adapters alone", "adapters")
    assert check(bridge, model, "adapters alone again", "adapters") == 0
    for module in model[0].modules():
        if hasattr(module, "linear_in") and hasattr(module, "alpha"):
            module.alpha = 2 * module.alpha
    check(bridge, model, "other scale")
    assert reasons().get("adapters") == 1, reasons()
    assert check(bridge, model, "other scale again") == 0


def config_broadcasts(bridge: Any, model: Any, layout: Layout, thorough: bool) -> None:
    """Mamba and gated-delta-net mappings: the configuration is broadcast once per plan, not per export."""
    from support.plan_mamba import keyless_mappings
    from verl_compat.shims.plan_tasks import key_config_broadcasts

    for name, task in keyless_mappings():
        wanted = outcome_of_mapping(task)
        again = Counting()
        with again:
            outcome_of_mapping(task)
        assert again.calls >= 2, f"{name}: Bridge broadcasts with a key now; nothing left to do"
        key_config_broadcasts([task])
        outcome_of_mapping(task)
        with Counting() as count:
            actual = outcome_of_mapping(task)
        assert count.calls == 0, f"{name}: {count.calls} object collectives"
        assert_equal((actual, None), (wanted, None), name)


def outcome_of_mapping(task: Any) -> list[tuple[str, Any]]:
    return sorted(task.mapping.megatron_to_hf(task.param_weight, task.megatron_module).items())


HAZARDS = (
    ("one_rank_changes_pp2", PP2, one_rank_changes),
    ("one_rank_changes_tp2", TP2, one_rank_changes),
    ("one_rank_changes_pp2_tp2", PP2_TP2, one_rank_changes),
    ("dtype_changes", PP2, dtype_changes),
    ("data_moves", PP2, data_moves),
    ("stops_half_way", PP2, stops_half_way),
    ("one_rank_stops_early", PP2, one_rank_stops_early),
    ("consumer_fails", PP2, consumer_fails),
    ("one_rank_disabled", PP2, one_rank_disabled),
    ("ranks_differ_in_mode", TP2, ranks_differ_in_mode),
    ("groups_made_anew", PP2, groups_made_anew),
    ("adapters_come_and_change", PP2, adapters_come_and_change),
    ("config_broadcasts", PP2, config_broadcasts),
)
