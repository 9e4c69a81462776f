"""Single experts and quantizer buffers under expert parallelism (EP=2), from each Bridge release."""

from __future__ import annotations

import pytest


@pytest.fixture(params=[0, 1])
def rank_and_result(config_worker, request):
    return request.param, config_worker("experts_part")[request.param]


def test_import_and_export_equal_the_checkpoint(rank_and_result):
    _, result = rank_and_result
    assert result["local experts"] > 0, "the model has no SequentialMLP: the test would show nothing"
    assert result["plain"] == "same"


def test_quantizer_buffers_are_left_out_of_the_plan(rank_and_result):
    _, result = rank_and_result
    assert result["quantised layers"] == 2 * (6 + 1)  # two layers: six experts' fc1 and one projection each
    assert result["quantised"] == "same"
    assert None not in result["tasks"]
    assert not [name for name in result["tasks"] if "quantizer" in name]


def test_experts_are_planned_in_numerical_order(rank_and_result):
    rank, result = rank_and_result
    found = [name for name in result["tasks"] if name.startswith("decoder.layers.1.mlp.experts.local_experts.")]
    numbers = [int(name.split("local_experts.")[1].split(".")[0]) for name in found]
    assert numbers == sorted(numbers)
    assert set(numbers) == set(range(6 * rank, 6 * rank + 6))


def test_global_names(rank_and_result):
    rank, result = rank_and_result
    first = 6 * rank
    layer = "decoder.layers.1.mlp."
    expected = {
        "experts.local_experts.3.linear_fc1.weight": f"experts.local_experts.{first + 3}.linear_fc1.weight",
        "experts.local_experts.3.linear_fc1.weight_quantizer._amax": (
            f"experts.local_experts.{first + 3}.linear_fc1.weight_quantizer._amax"
        ),
        "experts.linear_fc1.weight3": f"experts.linear_fc1.weight{first + 3}",
        "experts.linear_fc2.bias5": f"experts.linear_fc2.bias{first + 5}",
        "experts.linear_fc1.weight_quantizer._amax": "experts.linear_fc1.weight_quantizer._amax",
        "experts.linear_fc1.weight3._amax": f"experts.linear_fc1.weight{first + 3}._amax",
        "experts.linear_fc1.adapter.linear_in.weight": "experts.linear_fc1.adapter.linear_in.weight",
        "shared_experts.linear_fc1.weight": "shared_experts.linear_fc1.weight",
        "router.expert_bias": "router.expert_bias",
    }
    for local, name in expected.items():
        assert result["names"][layer + local] == layer + name
    head = "mtp.layers.0.transformer_layer.mlp.experts.local_experts."
    assert result["names"][f"{head}0.linear_fc2.weight"] == f"{head}{first}.linear_fc2.weight"
    plain = "decoder.layers.1.self_attention.linear_qkv.layer_norm_weight"
    assert result["names"][plain] == plain
