import pytest
import torch

from support import build_provider


@pytest.fixture
def provider(dense_checkpoint, assert_path):
    from megatron.bridge.models.model_provider import ModelProviderMixin

    assert_path(ModelProviderMixin.apply_overrides_and_finalize)
    return build_provider(dense_checkpoint, finalize=False)[1]


@pytest.mark.parametrize(
    ("dtype", "fp16", "bf16"),
    [(torch.bfloat16, False, True), (torch.float16, True, False), (torch.float32, False, False)],
)
def test_dtype_sets_three_fields(provider, dtype, fp16, bf16):
    provider.fp16 = provider.bf16 = None
    assert provider.apply_overrides_and_finalize(dtype=dtype) is provider
    assert (provider.params_dtype, provider.fp16, provider.bf16) == (dtype, fp16, bf16)


def test_no_dtype_leaves_the_fields_alone(provider):
    provider.params_dtype, provider.fp16, provider.bf16 = torch.bfloat16, False, True
    provider.apply_overrides_and_finalize()
    assert (provider.params_dtype, provider.fp16, provider.bf16) == (torch.bfloat16, False, True)


def test_overrides_are_set_before_the_one_finalize(provider, monkeypatch):
    seen = []
    original = type(provider).finalize

    def finalize(self):
        seen.append(self.num_layers)
        original(self)

    monkeypatch.setattr(type(provider), "finalize", finalize)
    provider.apply_overrides_and_finalize(overrides={"num_layers": 2})
    assert seen == [2]


def test_finalize_really_ran(provider):
    provider.ffn_hidden_size = None
    provider.apply_overrides_and_finalize(overrides={"hidden_size": 32})
    assert provider.ffn_hidden_size == 4 * 32  # filled in by megatron.core's own post-init


def test_unknown_override_is_an_attribute_error_and_not_set(provider):
    with pytest.raises(AttributeError, match="attention_backed"):
        provider.apply_overrides_and_finalize(overrides={"attention_backed": "flash"})
    assert not hasattr(provider, "attention_backed")


def test_overridden_provider_builds(provider):
    from support import build_model

    provider.apply_overrides_and_finalize(dtype=torch.float32, overrides={"num_layers": 2})
    (chunk,) = build_model(provider)
    assert len(chunk.decoder.layers) == 2
