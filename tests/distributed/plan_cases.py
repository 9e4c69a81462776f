"""What the ranks of plan_worker.py do together."""

from __future__ import annotations

import functools
import gc
import os
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import plan_hazards

from support.plan import Counting, Layout, assert_equal, build, fresh, outcome, parallel_sizes, stream, train_step

TP, PP, EP = "tensor_model_parallel_size", "pipeline_model_parallel_size", "expert_model_parallel_size"
VPP = "virtual_pipeline_model_parallel_size"

LAYOUTS = (
    Layout("tp2", 2, parallel={TP: 2}),
    Layout("pp2", 2, parallel={PP: 2}),
    Layout("pp2_vpp2", 2, parallel={PP: 2, VPP: 2}),
    Layout("ep2", 2, kind="qwen3_moe", parallel={EP: 2}),
    Layout("pp2_moe", 2, kind="qwen3_moe", parallel={PP: 2}),
    Layout("pp2_lora", 2, parallel={PP: 2}, peft="lora"),
    Layout("pp2_canonical_lora", 2, parallel={PP: 2}, peft="canonical_lora"),
    Layout("pp2_dora", 2, parallel={PP: 2}, peft="dora"),
    Layout("tp2_lora", 2, parallel={TP: 2}, peft="lora"),
    Layout("pp2_tp2", 4, parallel={PP: 2, TP: 2}),
    Layout("pp2_tp2_lora", 4, parallel={PP: 2, TP: 2}, peft="lora"),
    Layout("pp2_ep2", 4, kind="qwen3_moe", parallel={PP: 2, EP: 2}),
    Layout("pp4", 4, parallel={PP: 4}),
    Layout("pp2_dp2", 4, parallel={PP: 2}),
)

THOROUGH_ONLY = {
    "pp2", "pp2_dora", "tp2_lora", "pp2_tp2", "pp2_dp2", "pp4",
    "one_rank_changes_tp2", "one_rank_changes_pp2_tp2", "data_moves", "consumer_fails",
}  # fmt: skip
"""Cases whose layout or event another case also has; without them four Bridge releases take some three minutes."""


def cases(
    world: int, folder: Path, *, thorough: bool, share: tuple[int, int]
) -> Iterator[tuple[str, Callable[[], None]]]:
    """Name and body of each case of this world size; with ``share`` (i, n) every n-th, from i on."""
    found: list[tuple[str, Callable[[], None]]] = []
    for layout in LAYOUTS:
        if layout.world == world:
            exports = 6 if thorough else 3
            found.append((layout.name, functools.partial(with_layout, layout, folder, same_stream, exports=exports)))
    for name, layout, body in (*plan_hazards.HAZARDS, ("random_events", plan_hazards.PP2, random_events)):
        if layout.world == world:
            found.append((name, functools.partial(with_layout, layout, folder, body, thorough=thorough)))
    chosen = [(name, case) for name, case in found if thorough or name not in THOROUGH_ONLY]
    yield from chosen[share[0] :: share[1]]


def with_layout(layout: Layout, folder: Path, body: Callable[..., None], **kwargs: Any) -> None:
    """Initialise model parallelism, build the model, run ``body(bridge, model, layout)``, clean up."""
    import torch.distributed as dist
    from megatron.core import parallel_state as mpu

    from support import tiny
    from verl_compat import plan_cache

    path = folder / f"{layout.kind}_{os.getpid()}"  # one per rank: worlds run side by side
    if not path.exists():
        tiny.write_tiny_checkpoint(path, layout.kind)
    mpu.initialize_model_parallel(**parallel_sizes(layout))
    plan_cache.clear()
    plan_cache.reset_stats()
    try:
        bridge, model = build(layout, path)
        body(bridge, model, layout, **kwargs)
        watched = [weakref.ref(bridge), *map(weakref.ref, model)]
        del bridge, model
        gc.collect()
        assert not [reference for reference in watched if reference() is not None], "bridge or model is kept alive"
        assert plan_cache.stats().entries == 0, "plans outlive their model"
        dist.barrier()
    finally:
        mpu.destroy_model_parallel()


def same_stream(bridge: Any, model: Any, layout: Layout, exports: int) -> None:
    """Every export equals Bridge's own, and from the second on no object collective is needed."""
    from megatron.bridge import AutoBridge

    from verl_compat import plan_cache

    other = AutoBridge.from_hf_pretrained(bridge.hf_pretrained.model_name_or_path)
    hits = 0
    for step in range(exports):
        train_step(model, seed=100 + step)
        for mode in layout.modes:
            what = f"{layout.name} {mode} export {step}"
            with Counting() as count:
                actual = outcome(lambda mode=mode: stream(bridge, model, mode))
            assert_equal(actual, fresh(other, model, mode), what)
            complete = actual[1] is None
            hits += complete and step > 0
            if complete and step > 0:
                assert count.calls == 0, f"{what}: {count.calls} object collectives"
    stats = plan_cache.stats()
    assert stats.hits == hits, stats
    if layout.peft is None and hits:
        assert stats.inventories_skipped == 1, stats  # merged mode, first export


def random_events(bridge: Any, model: Any, layout: Layout, thorough: bool) -> None:
    """The state machine of support.plan_events; derandomized, so that all ranks draw the same events."""
    from hypothesis import HealthCheck, Phase, settings
    from hypothesis.stateful import run_state_machine_as_test

    from support.plan_events import Events

    path = Path(bridge.hf_pretrained.model_name_or_path)
    machine = type("Events", (Events,), {"path": path, "layout": layout})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=30 if thorough else 4,
            stateful_step_count=30 if thorough else 12,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.generate],  # shrinking would leave the ranks out of step
            suppress_health_check=list(HealthCheck),
        ),
    )
