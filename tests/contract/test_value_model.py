import pickle

import pytest
import torch

from support import assert_same_tensors, build_model, build_provider, export_state, forward_logits, read_checkpoint


@pytest.fixture
def train_utils(assert_path):
    from megatron.bridge.training.utils import train_utils

    for name in ("LinearForLastLayer", "create_value_head_hook", "make_value_model", "freeze_moe_router"):
        assert_path(getattr(train_utils, name))
    return train_utils


@pytest.fixture
def pipeline(monkeypatch):
    """Pretend to be one rank of a pipeline: sizes, and which of its chunks is the last stage."""
    from megatron.core import parallel_state

    def pretend(world_size, virtual_size, last):
        monkeypatch.setattr(parallel_state, "get_pipeline_model_parallel_world_size", lambda: world_size)
        monkeypatch.setattr(parallel_state, "get_virtual_pipeline_model_parallel_world_size", lambda: virtual_size)

        def is_last(ignore_virtual=True, vp_stage=None):
            return last[vp_stage or 0]

        monkeypatch.setattr(parallel_state, "is_pipeline_last_stage", is_last)

    return pretend


def test_head_projects_to_fp32_pairs(train_utils):
    head = train_utils.LinearForLastLayer(8, 3, False).to(torch.bfloat16)
    hidden = torch.randn(5, 2, 8, dtype=torch.bfloat16)
    output, bias = head(hidden, weight=torch.zeros(3, 8), runtime_gather_output=True)
    assert bias is None
    assert output.dtype == torch.float32
    torch.testing.assert_close(output, torch.nn.functional.linear(hidden, head.weight).float())
    assert head.bias is None
    assert not getattr(head.weight, "sequence_parallel", False)


def test_sequence_parallel_head(train_utils, monkeypatch):
    """Keyword construction; the weight is marked, and the output gathered without reducing its gradient."""
    from megatron.core import tensor_parallel

    calls = []

    def gather(tensor, **kwargs):
        calls.append(kwargs)
        return torch.cat([tensor, tensor])

    monkeypatch.setattr(tensor_parallel, "gather_from_sequence_parallel_region", gather)
    head = train_utils.LinearForLastLayer(input_size=8, output_size=1, sequence_parallel=True)
    assert head.weight.sequence_parallel
    output, _ = head(torch.randn(5, 2, 8))
    assert output.shape == (10, 2, 1)
    assert calls == [{"tensor_parallel_output_grad": False}]


def test_head_can_be_pickled(train_utils):
    head = train_utils.LinearForLastLayer(4, 1, False)
    again = pickle.loads(pickle.dumps(head))
    assert type(again) is train_utils.LinearForLastLayer
    assert torch.equal(again.weight, head.weight)


def test_value_model_composes_with_the_next_hook(train_utils, moe_checkpoint):
    """The hook returns the chunks, so that freezing the router, registered after it, has a model to freeze."""
    seen = []
    _, provider = build_provider(moe_checkpoint)
    hooks = [
        train_utils.make_value_model(provider.hidden_size, provider.sequence_parallel),
        lambda model: seen.append(model) or model,
        train_utils.freeze_moe_router,
    ]
    (chunk,) = build_model(provider, hooks=hooks)
    assert type(chunk.output_layer) is train_utils.LinearForLastLayer
    assert seen == [[chunk]]
    assert all(not layer.mlp.router.weight.requires_grad for layer in chunk.decoder.layers)
    assert chunk.output_layer.weight.requires_grad


def test_value_model_loads_forwards_and_exports(train_utils, dense_checkpoint):
    """Conversion knows the head as replicated: the base weights load, and all but the head export unchanged."""
    bridge, provider = build_provider(dense_checkpoint)
    model = build_model(provider, hooks=[train_utils.make_value_model(hidden_size=64, sequence_parallel=False)])
    bridge.load_hf_weights(model, str(dense_checkpoint), allowed_mismatched_params=["output_layer.weight"])
    values = forward_logits(model, torch.randint(0, 512, (2, 6)))
    assert values.shape == (2, 6, 1)
    values.sum().backward()
    assert model[0].output_layer.weight.grad.abs().sum() > 0

    exported, expected = export_state(bridge, model), read_checkpoint(dense_checkpoint)
    head = exported.pop("lm_head.weight")
    expected.pop("lm_head.weight")
    assert torch.equal(head, model[0].output_layer.weight)
    assert_same_tensors(exported, expected)


def test_output_size(train_utils, dense_checkpoint):
    hook = train_utils.create_value_head_hook(64, False, output_size=5)
    (chunk,) = build_model(build_provider(dense_checkpoint)[1], hooks=[hook])
    assert chunk.output_layer.weight.shape == (5, 64)


def test_single_module_becomes_a_list(train_utils):
    chunk = torch.nn.Module()
    assert train_utils.make_value_model(8, False)(chunk) == [chunk]
    assert isinstance(chunk.output_layer, train_utils.LinearForLastLayer)


@pytest.mark.parametrize("last", [(False, True), (False, False), (True, False)])
def test_virtual_pipeline_chunks(train_utils, pipeline, last):
    pipeline(2, 2, last)
    chunks = [torch.nn.Module(), torch.nn.Module()]
    assert train_utils.make_value_model(8, False)(chunks) is chunks
    assert tuple(hasattr(chunk, "output_layer") for chunk in chunks) == last


def test_first_pipeline_stage_gets_no_head(train_utils, pipeline):
    pipeline(2, None, (False,))
    chunks = [torch.nn.Module()]
    assert train_utils.make_value_model(8, False)(chunks) is chunks
    assert not hasattr(chunks[0], "output_layer")


@pytest.mark.parametrize("chunks", [1, 3])
def test_wrong_number_of_chunks_is_a_value_error(train_utils, pipeline, chunks):
    pipeline(2, 2, (False, True))
    with pytest.raises(ValueError, match="2"):
        train_utils.make_value_model(8, False)([torch.nn.Module() for _ in range(chunks)])
