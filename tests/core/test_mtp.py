"""Multi-token prediction: verl's patches (real files of its wheels) on real megatron-core, against core's own.

The kind: a copy of an upstream's method that its upstream calls otherwise in a later release.  Right is what core's own
method gives: the same logits, the same gradient of every parameter, the same padding mask inside the MTP layers.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from packaging.version import Version

VERLS = ("0.7.1", "0.8.0", "0.9.1")
FILE = Path(sys.prefix) / "other" / "verl-{}" / "verl/models/mcore/mtp_patch.py"
VOCABULARY, LENGTH = 64, 8


@pytest.fixture(params=VERLS)
def verl(request, core, stubs):
    """verl's module, from its wheel; its packages, which want all of verl's dependencies, are empty."""
    file = Path(str(FILE).format(request.param))
    if not file.exists():
        pytest.skip(f"this environment has no verl {request.param}")
    stubs.dist("verl", request.param, models__mcore__mtp_patch=file.read_text())
    return stubs.load("verl.models.mcore.mtp_patch")


@pytest.fixture
def one_rank(gloo, monkeypatch):
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel import random as core_random

    parallel_state.initialize_model_parallel()
    core_random.initialize_rng_tracker()
    monkeypatch.setattr(core_random.get_cuda_rng_tracker(), "fork", lambda *_, **__: contextlib.nullcontext())
    for name in ("get_rng_state", "set_rng_state"):  # saved for recomputation; no dropout draws from them
        monkeypatch.setattr(f"torch.cuda.{name}", lambda *_, **__: None)
    for name in ("_get_cuda_rng_state", "_set_cuda_rng_state"):
        monkeypatch.setattr(core_random, name, lambda *_, **__: None, raising=False)
    yield
    parallel_state.destroy_model_parallel()


def gpt(recompute=False, layers=2, **kwargs):
    import torch
    from megatron.core.models.gpt import gpt_layer_specs as specs
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import TransformerConfig

    if recompute:
        kwargs |= {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    config = TransformerConfig(
        num_layers=2,
        hidden_size=32,
        num_attention_heads=4,
        use_cpu_initialization=True,
        mtp_num_layers=layers,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        normalization="RMSNorm",
        gradient_accumulation_fusion=False,
        persist_layer_norm=False,
        masked_softmax_fusion=False,
        bias_dropout_fusion=False,
        apply_rope_fusion=False,
        add_bias_linear=False,
        gated_linear_unit=True,
        **kwargs,
    )
    torch.manual_seed(0)
    spec = specs.get_gpt_layer_local_spec(normalization="RMSNorm")
    mtp = specs.get_gpt_mtp_block_spec(config, spec, use_transformer_engine=False)
    model = GPTModel(config, spec, VOCABULARY, LENGTH, position_embedding_type="rope", mtp_block_spec=mtp)
    return model.train()


def batch(core, seed=1):
    import torch

    torch.manual_seed(seed)
    ids, labels = torch.randint(0, VOCABULARY, (2, 1, LENGTH))
    given = {
        "input_ids": ids,
        "position_ids": torch.arange(LENGTH)[None],
        "attention_mask": torch.triu(torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool), 1),
        "labels": labels,
        "loss_mask": torch.tensor([[1.0] * 6 + [0.0] * 2]),
    }
    if core >= Version("0.18"):
        given["padding_mask"] = torch.tensor([[False] * 6 + [True] * 2])
    return given


def masks_inside(model):
    """What reaches the transformer layers of MTP as ``padding_mask``, call by call (recomputation included)."""
    seen = []
    for layer in model.mtp.layers:
        inner = getattr(layer, "mtp_model_layer", None) or layer.transformer_layer

        def forward(*args, _inner=inner.forward, **kwargs):
            mask = kwargs.get("padding_mask")
            seen.append(None if mask is None else mask.flatten().tolist())
            return _inner(*args, **kwargs)

        inner.forward = forward
    return seen


def gradients(model, core, logits_of=None):
    """One step; ``logits_of`` where the model gives logits, as verl's does, and no loss."""
    seen = masks_inside(model)
    given = batch(core)
    output = model(**given)
    if logits_of:
        assert output.shape == (1, LENGTH, VOCABULARY)
        output = model.compute_language_model_loss(given["labels"], output.transpose(0, 1).contiguous())
    (output * given["loss_mask"]).sum().backward()
    found = {name: p.grad for name, p in model.named_parameters()}
    return output.detach(), found, seen


def patch(verl, model, detach=False):
    verl.patch_postprocess(model)
    if hasattr(verl, "patch_mtp_layer_checkpointed_forward"):
        verl.patch_mtp_layer_checkpointed_forward(model)
    if detach:
        verl.patch_mtp_layer_get_embeddings(model)


@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
@pytest.mark.usefixtures("one_rank")
def test_equals_core_s_own_mtp(core, verl, recompute):
    """Losses, every gradient and the masks, exactly."""
    import torch

    loss, wanted, masks = gradients(gpt(recompute), core)
    model = gpt(recompute)
    patch(verl, model)
    own_loss, found, own_masks = gradients(model, core, logits_of=True)
    assert torch.equal(own_loss, loss)
    assert own_masks == masks
    assert len(masks) == (4 if recompute else 2)
    if core >= Version("0.18"):
        assert any(mask and any(mask) for mask in masks)
    assert found.keys() == wanted.keys()
    legacy = core < Version("0.17")
    for name, gradient in wanted.items():
        if legacy and name.startswith("output_layer"):
            continue  # verl detaches the output layer there, on purpose
        torch.testing.assert_close(found[name], gradient, msg=lambda text, name=name: f"{name}: {text}")
        assert gradient.abs().sum() > 0, name


@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
@pytest.mark.usefixtures("one_rank")
def test_detached_mtp_trains_its_own_layers_only(core, verl, recompute):
    """detach_encoder: decoder and embeddings as without MTP, the MTP layers as core's; with recomputation too."""
    import torch

    _, wanted, masks = gradients(gpt(recompute, layers=1), core)
    model = gpt(recompute, layers=1)
    patch(verl, model, detach=True)
    _, found, own_masks = gradients(model, core, logits_of=True)
    assert own_masks == masks
    for name in (name for name in wanted if name.startswith("mtp.")):
        torch.testing.assert_close(found[name], wanted[name], msg=lambda text, name=name: f"{name}: {text}")
    plain = gpt(recompute, layers=None)
    state = {name: value for name, value in gpt(recompute, layers=1).state_dict().items() if "mtp." not in name}
    plain.load_state_dict(state)
    given = batch(core)
    (plain(**given) * given["loss_mask"]).sum().backward()
    for name, parameter in plain.named_parameters():
        if not name.startswith("output_layer"):  # the head also learns from MTP
            torch.testing.assert_close(found[name], parameter.grad, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.usefixtures("one_rank")
def test_without_labels_there_is_no_mtp(core, verl):
    """Log probabilities ask for logits alone: no MTP layer runs, the logits are those of the decoder."""
    import torch

    model = gpt()
    patch(verl, model)
    seen = masks_inside(model)
    given = batch(core)
    with_labels = model(**given)
    assert len(seen) == 2
    del given["labels"]
    assert torch.equal(model(**given), with_labels)
    assert len(seen) == 2


@pytest.mark.usefixtures("one_rank")
def test_an_output_processor_gets_what_core_hands_out(core, verl):
    """core >= 0.18 takes one, verl's copies drop it (0.9) or refuse it; its context comes with it."""
    import torch

    if core < Version("0.18"):
        return

    def processor(*, hidden_states, output_layer, context, labels, **_):
        return hidden_states, output_layer, context, labels

    given = batch(core) | {"output_processor": processor, "output_processor_context": "context"}
    wanted = gpt()(**given)
    model = gpt()
    patch(verl, model)
    hidden, layer, context, labels = model(**given)
    assert torch.equal(hidden, wanted[0])
    assert layer is model.output_layer
    assert context == "context"
    assert labels is given["labels"]


@pytest.mark.usefixtures("one_rank")
def test_mup_logits_are_scaled_as_core_scales_them(core, verl):
    """A thing that core does to the logits and verl's copies leave out."""
    import torch

    if core < Version("0.17"):
        return
    mup = {"use_mup": True, "mup_output_mult": 0.25}
    given = {name: value for name, value in batch(core).items() if name != "labels"}
    plain = gpt(layers=None, **mup)
    wanted = plain(**given)
    model = gpt(layers=None, **mup)
    patch(verl, model)
    assert torch.equal(model(**given), wanted)
    assert not torch.equal(wanted, gpt(layers=None)(**given))


@pytest.mark.usefixtures("one_rank")
def test_core_s_own_full_recomputation(core):
    """No verl: core 0.18's layer refuses the mask that it passes; gradients and masks as without recomputation."""
    import torch
    from megatron.core import __version__

    if Version(__version__) < Version("0.16"):
        pytest.skip("core 0.15's MTP layer cannot be built by this test's model; no adapter of ours is about it")

    _, wanted, masks = gradients(gpt(False), core)
    _, found, recomputed = gradients(gpt(True), core)
    assert set(map(str, recomputed)) == set(map(str, masks))
    assert len(recomputed) == 2 * len(masks)
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient, msg=lambda text, name=name: f"{name}: {text}")


def test_outcomes(core, verl, stubs):
    """Each adapter where its release needs it, and nowhere else (`core_0_18_mtp_full_recompute` with them)."""
    release = Version(stubs.load("importlib.metadata").version("verl"))
    assert SimpleNamespace(
        methods=stubs.outcome("verl_lt_0_9_mtp_methods") == "applied",
        recompute=stubs.outcome("verl_0_8_mtp_recompute") == "applied",
        loss=stubs.outcome("verl_0_7_1_mtp_loss") == "applied",
        output=stubs.outcome("verl_mtp_output") == "applied",
        core=stubs.outcome("core_0_18_mtp_full_recompute") == "applied",
    ) == SimpleNamespace(
        methods=release < Version("0.9") and core >= Version("0.18"),
        recompute=release.minor == 8 and core >= Version("0.18"),
        loss=release < Version("0.8") and core >= Version("0.16"),
        output=core >= Version("0.17"),
        core=core.minor == 18,
    )
