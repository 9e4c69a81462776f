"""Names of experts and quantizers, with no upstream installed."""

import re
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_compat.shims.qat_names import expert_number, is_quantizer_name, leave_quantizers_out, name_unmapped, sort_key


def original_number(name):
    raise ValueError(f"No expert number found in parameter name: {name}")


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("decoder.layers.7.mlp.experts.linear_fc1.weight3", 3),
        ("decoder.layers.7.mlp.experts.linear_fc2.bias12", 12),
        ("decoder.layers.7.mlp.experts.local_experts.5.linear_fc1.weight", 5),
        ("experts.0.local_experts.5.linear_fc1.weight1", 5),
        ("model.experts.9.up_proj", 9),
        ("experts.2.linear_fc1.weight4", 4),
    ],
)
def test_expert_number(name, number):
    assert expert_number(original_number, name) == number


def test_no_expert_is_upstreams_error():
    with pytest.raises(ValueError, match="No expert number found"):
        expert_number(original_number, "decoder.layers.7.mlp.linear_fc1.weight")


def original_key(name):
    """Bridge's own before 0.5: layer, then the number after weight or bias, padded to two."""
    found = [re.search(r"layers\.(\d+)", name), re.search(r"(?:bias|weight)(\d+)", name)]
    numbers = [int(match[1]) for match in found if match]
    return (numbers + [-1, -1])[:2], name


@given(layer=st.integers(0, 99), expert=st.integers(0, 999))
def test_sort_key_of_single_experts(layer, expert):
    name = f"decoder.layers.{layer}.mlp.experts.local_experts.{expert}.linear_fc1.weight"
    assert sort_key(original_key, name) == ([layer, expert], name)
    assert sort_key(original_key, name.partition("mlp.")[2]) == ([expert, -1], name.partition("mlp.")[2])


@given(layer=st.integers(0, 99), expert=st.integers(0, 999))
def test_sort_key_of_other_names_is_upstreams(layer, expert):
    for name in (
        f"decoder.layers.{layer}.mlp.experts.linear_fc1.weight{expert}",
        f"decoder.layers.{layer}.self_attention.linear_qkv.weight",
        "embedding.word_embeddings.weight",
    ):
        assert sort_key(original_key, name) == original_key(name)


QUANTIZERS = [
    "decoder.layers.0.self_attention.linear_qkv.weight_quantizer._amax",
    "decoder.layers.0.mlp.linear_fc1.input_quantizer._pre_quant_scale",
    "decoder.layers.0.self_attention.core_attention.k_bmm_quantizer._amax",
    "decoder.layers.0.mlp.experts.linear_fc1.weight_quantizer.0._amax",
]
OTHERS = [
    "decoder.layers.0.self_attention.linear_qkv.weight",
    "decoder.layers.0.mlp.dequantizer.weight",
    "quantizers.weight",
]


class Planned:
    """A bridge that has planned: names of all parameters, and a task per mapped one."""

    def __init__(self, names):
        self._cached_param_names = names

    def tasks(self, unmapped):
        return [
            None if name in unmapped else SimpleNamespace(global_param_name=name) for name in self._cached_param_names
        ]


@pytest.mark.parametrize("switch", [None, "0", "1", "2", "yes"])
def test_quantizers_are_left_out_unless_bridge_maps_them(monkeypatch, switch):
    """Only what is known to be no weight is left out: `bridge_quantizer_buffers`."""
    if switch is None:
        monkeypatch.delenv("ENABLE_BRIDGE_QUANT_MAPPING", raising=False)
    else:
        monkeypatch.setenv("ENABLE_BRIDGE_QUANT_MAPPING", switch)
    assert all(map(is_quantizer_name, QUANTIZERS))
    assert not any(map(is_quantizer_name, OTHERS))
    bridge = Planned([*QUANTIZERS, *OTHERS])
    unmapped = {*QUANTIZERS, OTHERS[0]}
    left = leave_quantizers_out(lambda self, *args: self.tasks(unmapped), bridge, "pretrained", "model")
    names = [task and task.global_param_name for task in left]
    whole = [None] * (len(QUANTIZERS) + 1) + OTHERS[1:]
    assert names == ([None, *OTHERS[1:]] if switch in (None, "0") else whole)


def test_a_weight_without_mapping_is_refused_by_name():
    """The kind: an incomplete result instead of an error."""
    bridge = Planned([*QUANTIZERS, *OTHERS])
    with pytest.raises(AttributeError, match=re.escape(OTHERS[0])):
        name_unmapped(lambda *args: args, bridge, bridge.tasks({OTHERS[0]}), "Converting")
    tasks = bridge.tasks(())
    assert name_unmapped(lambda *args: args, bridge, tasks, "Converting") == (bridge, tasks, "Converting")
