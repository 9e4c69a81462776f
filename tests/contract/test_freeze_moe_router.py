from types import SimpleNamespace

import pytest
import torch

from support import build_model, build_provider
from support.tiny import mixed_layer_spec


@pytest.fixture
def freeze_moe_router(assert_path):
    from megatron.bridge.training.utils.train_utils import freeze_moe_router

    assert_path(freeze_moe_router)
    return freeze_moe_router


def frozen(model):
    return {name for name, parameter in model.named_parameters() if not parameter.requires_grad}


def test_real_moe_model(freeze_moe_router, moe_checkpoint):
    (chunk,) = build_model(build_provider(moe_checkpoint)[1])
    assert chunk.decoder.layers[0].mlp.router.bias is None  # the case that verl's own function fails on
    result = freeze_moe_router([chunk])
    assert result == [chunk]
    assert frozen(chunk) == {f"decoder.layers.{layer}.mlp.router.weight" for layer in range(4)}


def test_single_module_becomes_a_list(freeze_moe_router, moe_checkpoint):
    (chunk,) = build_model(build_provider(moe_checkpoint)[1])
    assert freeze_moe_router(chunk) == [chunk]
    assert frozen(chunk)


def test_router_bias(freeze_moe_router, moe_checkpoint):
    (chunk,) = build_model(build_provider(moe_checkpoint, add_bias_linear=True)[1])
    freeze_moe_router([chunk])
    names = ("router.weight", "router.bias")
    assert frozen(chunk) == {f"decoder.layers.{layer}.mlp.{name}" for layer in range(4) for name in names}


def test_shared_expert_gate(freeze_moe_router, moe_checkpoint):
    _, provider = build_provider(moe_checkpoint, moe_shared_expert_intermediate_size=32, moe_shared_expert_gate=True)
    (chunk,) = build_model(provider)
    freeze_moe_router([chunk])
    names = ("router.weight", "shared_experts.gate_weight")
    assert frozen(chunk) == {f"decoder.layers.{layer}.mlp.{name}" for layer in range(4) for name in names}


def test_dense_and_moe_layers_mixed(freeze_moe_router, moe_checkpoint):
    _, provider = build_provider(moe_checkpoint, moe_layer_freq=[0, 1, 0, 1], transformer_layer_spec=mixed_layer_spec)
    (chunk,) = build_model(provider)
    freeze_moe_router([chunk])
    assert frozen(chunk) == {f"decoder.layers.{layer}.mlp.router.weight" for layer in (1, 3)}


def test_dense_model_is_left_alone(freeze_moe_router, dense_checkpoint):
    (chunk,) = build_model(build_provider(dense_checkpoint)[1])
    assert freeze_moe_router([chunk]) == [chunk]
    assert not frozen(chunk)


def test_list_of_virtual_pipeline_chunks(freeze_moe_router, moe_checkpoint):
    chunks = [build_model(build_provider(moe_checkpoint, num_layers=2)[1])[0] for _ in range(2)]
    assert freeze_moe_router(chunks) is chunks
    for chunk in chunks:
        assert frozen(chunk) == {f"decoder.layers.{layer}.mlp.router.weight" for layer in range(2)}


def test_chunks_without_decoder_layers_and_absent_or_none_parameters(freeze_moe_router):
    weight = torch.nn.Parameter(torch.zeros(1))
    mlp = SimpleNamespace(
        router=SimpleNamespace(weight=weight, bias=None),
        shared_experts=SimpleNamespace(gate_weight=None),
    )
    no_gate = SimpleNamespace(router=SimpleNamespace(), shared_experts=None)
    layers = [SimpleNamespace(mlp=mlp), SimpleNamespace(mlp=no_gate), SimpleNamespace(mlp=None), SimpleNamespace()]
    chunks = [
        SimpleNamespace(),
        SimpleNamespace(decoder=None),
        SimpleNamespace(decoder=SimpleNamespace()),
        SimpleNamespace(decoder=SimpleNamespace(layers=layers)),
    ]
    assert freeze_moe_router(chunks) == chunks
    assert not weight.requires_grad
