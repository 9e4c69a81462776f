"""The parts of the Bridge helpers that need no upstream; the rest is in tests/contract."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from verl_compat.shims import peft, value_head
from verl_compat.shims.provider_overrides import apply_overrides_and_finalize


class Provider:
    def __init__(self):
        self.num_layers = 2
        self.recompute_granularity = None
        self.finalized = 0

    def finalize(self):
        self.finalized += 1


def test_overrides_are_set_and_finalized_once():
    provider = Provider()
    assert apply_overrides_and_finalize(provider, overrides={"num_layers": 4}) is provider
    assert (provider.num_layers, provider.finalized) == (4, 1)


def test_unknown_overrides_name_close_matches_and_change_nothing():
    provider = Provider()
    with pytest.raises(AttributeError) as caught:
        apply_overrides_and_finalize(provider, overrides={"num_layers": 4, "recompute_granularty": "full", "zzz": 1})
    message = str(caught.value)
    assert "'recompute_granularty' (did you mean recompute_granularity?)" in message
    assert "'zzz'" in message
    assert (provider.num_layers, provider.finalized) == (2, 0)


def test_provider_without_finalize():
    provider = SimpleNamespace(num_layers=2)
    assert apply_overrides_and_finalize(provider, overrides={"num_layers": 4}).num_layers == 4


def test_sections_of_model_chunks():
    assert peft._section_of({"model": 1}, 0, 1) == 1
    assert peft._section_of({"iteration": 0, "model0": 2}, 0, 1) == 2
    assert [peft._section_of({"model0": 1, "model1": 2}, chunk, 2) for chunk in range(2)] == [1, 2]
    with pytest.raises(KeyError, match="model1.*virtual pipeline"):
        peft._section_of({"model0": 1}, 1, 2)
    with pytest.raises(KeyError, match="model"):
        peft._section_of({"optimizer": 1}, 0, 1)


def test_extra_state_is_dropped_from_model_sections_only():
    sections = {"model": {"a.adapter.weight": 1, "a.adapter._extra_state": 2}, "rng_extra_state": {"_extra_state": 3}}
    assert peft._without_extra_state(sections) == {
        "model": {"a.adapter.weight": 1},
        "rng_extra_state": {"_extra_state": 3},
    }


def test_no_peft_needs_no_upstream():
    assert peft.create_peft({"rank": 0}) is None
    with pytest.raises(TypeError, match="rank is None"):
        peft.create_peft({"rank": None})
    with pytest.raises(ValueError, match="adalora"):
        peft.create_peft({"rank": 1, "type": "adalora"})


@pytest.mark.parametrize("result", [None, ["other"]])
def test_value_model_hook_that_returns_none_passes_the_chunks_on(result):
    def make_value_model(hidden_size, sequence_parallel):
        def hook(model):
            return result

        return hook

    hook = value_head.chain_value_model(make_value_model, 8, sequence_parallel=False)
    assert hook(["chunk"]) == (result or ["chunk"])
    assert hook("chunk") == (result or ["chunk"])


def test_own_value_model_is_recognised():
    def make_value_model():
        pass

    module = SimpleNamespace(__name__=__name__, make_value_model=make_value_model)
    assert value_head.has_own_value_model(module)
    assert not value_head.has_own_value_model(SimpleNamespace(__name__="other", make_value_model=make_value_model))
    assert not value_head.has_own_value_model(SimpleNamespace(__name__="other"))


def test_lazy_module_attribute_refuses_other_names():
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = value_head.no_such_name
