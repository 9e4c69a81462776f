"""verl's routing replay against real megatron-core (verl#5155, verl#5727).

verl's own modules need all of verl's dependencies, so they are stand-ins here: the names that verl
binds from core, and verl's signatures.  Core is the real wheel.
"""

from __future__ import annotations

import importlib
import inspect
from types import SimpleNamespace

import pytest
from packaging.version import Version

VERL_UTILS = "from megatron.core.transformer.transformer_layer import get_transformer_layer_offset\n"
VERL_PATCH_0_7_0 = """
    import torch
    from megatron.core.transformer.moe.router import TopKRouter

    def patched_routing(self, logits: torch.Tensor):
        return "replayed", logits
"""


@pytest.fixture
def layer_offset(stubs):
    stubs.dist("verl", "0.9.1", utils__megatron__router_replay_utils=VERL_UTILS)
    return stubs.load("verl.utils.megatron.router_replay_utils").get_transformer_layer_offset


def config(core, pipeline, virtual=None, layers=8):
    from megatron.core.transformer.transformer_config import TransformerConfig

    return TransformerConfig(
        num_layers=layers,
        hidden_size=8,
        num_attention_heads=2,
        pipeline_model_parallel_size=pipeline,
        virtual_pipeline_model_parallel_size=virtual,
        pipeline_dtype=importlib.import_module("torch").float32,
    )


@pytest.fixture
def own_rank():
    from megatron.core import parallel_state

    parallel_state.set_pipeline_model_parallel_rank(1)
    parallel_state.set_pipeline_model_parallel_world_size(2)
    yield 1
    parallel_state.set_pipeline_model_parallel_rank(None)
    parallel_state.set_pipeline_model_parallel_world_size(None)


@pytest.mark.parametrize(
    ("virtual", "stage", "rank", "offset"),
    [
        (None, None, 0, 0),
        (None, None, 1, 4),
        (2, 0, 0, 0),
        (2, 0, 1, 2),
        (2, 1, 0, 4),
        (2, 1, 1, 6),
        (None, None, None, 4),
    ],
)
@pytest.mark.usefixtures("own_rank")
def test_offset_of_any_rank_and_stage(core, layer_offset, virtual, stage, rank, offset):
    """8 layers on 2 pipeline ranks; on core 0.15 and newer this is core's own function."""
    from megatron.core import parallel_state

    assert layer_offset(config(core, 2, virtual), vp_stage=stage, pp_rank=rank) == offset
    assert parallel_state.get_pipeline_model_parallel_rank() == 1


def test_replaced_only_where_core_takes_no_pp_rank(core, layer_offset, stubs):
    assert "pp_rank" in inspect.signature(layer_offset).parameters
    expected = "applied" if core < Version("0.15") else "out-of-range"
    outcome = stubs.outcome("verl_router_replay_layer_offset")
    assert outcome == expected or (expected == "out-of-range" and outcome == "not-needed")


@pytest.fixture
def routing(stubs):
    stubs.dist("verl", "0.7.0", utils__megatron__router_replay_patch=VERL_PATCH_0_7_0)
    return stubs.load("verl.utils.megatron.router_replay_patch").patched_routing


def test_verl_0_7_0_routing_takes_what_core_passes(core, routing, stubs):
    """core >= 0.16 calls routing(logits, padding_mask=...); the mask is None without padding."""
    if core < Version("0.16"):
        assert stubs.outcome("verl_0_7_0_routing_padding_mask") == "out-of-range"
        return
    assert stubs.outcome("verl_0_7_0_routing_padding_mask") == "applied"
    router = SimpleNamespace(router_replay=object())
    assert routing(router, "logits", padding_mask=None) == ("replayed", "logits")
    assert routing(router, "logits") == ("replayed", "logits")
    assert routing(router, "logits", padding_mask="mask") == ("replayed", "logits")


def test_the_mask_reaches_core_when_nothing_is_replayed(core, stubs, monkeypatch):
    from megatron.core.transformer.moe.router import TopKRouter

    seen = {}

    def routing_of_core(self, logits, padding_mask=None):
        seen["mask"] = padding_mask
        return "routed", logits

    monkeypatch.setattr(TopKRouter, "routing", routing_of_core)
    if core < Version("0.16"):
        return
    stubs.dist("verl", "0.7.0", utils__megatron__router_replay_patch=VERL_PATCH_0_7_0)
    routing = stubs.load("verl.utils.megatron.router_replay_patch").patched_routing
    assert routing(SimpleNamespace(router_replay=None), "logits", padding_mask="mask") == ("routed", "logits")
    assert seen == {"mask": "mask"}


def test_later_verl_is_untouched(stubs):
    source = VERL_PATCH_0_7_0.replace("Tensor)", "Tensor, *args, **kwargs)")
    stubs.dist("verl", "0.7.1", utils__megatron__router_replay_patch=source)
    routing = stubs.load("verl.utils.megatron.router_replay_patch").patched_routing
    assert list(inspect.signature(routing).parameters) == ["self", "logits", "args", "kwargs"]
    assert stubs.outcome("verl_0_7_0_routing_padding_mask") in ("not-needed", "out-of-range")
