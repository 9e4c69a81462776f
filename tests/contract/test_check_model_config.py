"""Provider against checkpoint configuration, for every configuration class that this Bridge registers.

The kind: a field that moved in transformers, or that a bridge hard-codes, leaves a value that the checkpoint was not
trained with, without a word. No weights are made: configurations only.
"""

import copy
import logging

import pytest
import transformers

from support import build_model, build_provider
from support.versions import BRIDGE
from verl_compat import integrity
from verl_compat.log import _said
from verl_compat.shims.check.hf_config import language_part
from verl_compat.shims.check.model_config import compare
from verl_compat.state import STATE

THETA, EPSILON = 1234567.0, 3.25e-7
# Bridge has no field for these, or sets them against the checkpoint for models of which no tied release exists
TOLD = {
    "DeepseekV2ForCausalLM": {"share_embeddings_and_output_weights"},
    "DeepseekV3ForCausalLM": {"share_embeddings_and_output_weights"},
    "Exaone4ForCausalLM": {"window_size"},
    "Glm4MoeForCausalLM": {"share_embeddings_and_output_weights"},
    "Glm4MoeLiteForCausalLM": {"share_embeddings_and_output_weights"},
    "GptOssForCausalLM": {"share_embeddings_and_output_weights"},
    "OlmoeForCausalLM": {"share_embeddings_and_output_weights"},
}
MENDED = {
    "Ernie4_5_MoeForCausalLM": "rotary_base",
    "Mistral3ForConditionalGeneration": "layernorm_epsilon",
    "Qwen2_5OmniForConditionalGeneration": "rotary_base",
    "Qwen3OmniMoeForConditionalGeneration": "rotary_base",
    "Qwen3MoeForCausalLM": "moe_router_pre_softmax",
}


def registered():
    """Names of the registered architectures that the installed transformers has classes for."""
    from megatron.bridge.models.conversion import model_bridge

    kinds = model_bridge.get_model_bridge._exact_types
    names = {kind if isinstance(kind, str) else kind.__name__ for kind in kinds}
    return sorted(name for name in names if hasattr(transformers, name))


def configuration(architecture):
    """The class's default configuration with another rotary base, norm epsilon and tie; None where it has none."""
    config = getattr(transformers, architecture).config_class()
    config.architectures = [architecture]
    config._name_or_path = "made-up"
    part = language_part(config)
    for name in ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps"):
        if hasattr(part, name):
            setattr(part, name, EPSILON)
    parameters = getattr(part, "rope_parameters", None) or {}
    if "rope_theta" in parameters:
        part.rope_parameters = {**parameters, "rope_theta": THETA}
    elif hasattr(part, "rope_theta"):
        part.rope_theta = THETA
    for each in (config, part):
        if hasattr(each, "tie_word_embeddings"):
            each.tie_word_embeddings = True
    return config


def provider_for(config):
    """The provider; None where this Bridge cannot make one of a bare configuration (it says so itself)."""
    from megatron.bridge import AutoBridge

    try:
        return AutoBridge.from_hf_config(config).to_megatron_provider(load_weights=False)
    except (AttributeError, KeyError, ValueError, TypeError) as error:
        logging.getLogger(__name__).info("%s: %s", config.architectures, error)
        return None


@pytest.fixture(autouse=True)
def fresh():
    integrity.forget()
    _said.clear()


def test_every_registered_class_is_compared_and_only_known_differences_are_left():
    found, compared, refused = {}, 0, []
    for architecture in registered():
        config = configuration(architecture)
        provider = provider_for(config)
        if provider is None:
            refused.append(architecture)
            continue
        names, differences = compare(provider, config)
        assert len(names) >= 9, (architecture, names)
        compared += 1
        if differences:
            found[architecture] = {difference.field for difference in differences}
    assert compared >= 14, (compared, refused)
    assert len(refused) <= 7, refused
    expected = {name: fields for name, fields in TOLD.items() if name in found}
    assert found == expected
    assert "DeepseekV3ForCausalLM" in found  # the comparison is no formality: this one is known to differ


@pytest.mark.parametrize("architecture", sorted(MENDED))
def test_hard_coded_fields_come_from_the_checkpoint(architecture):
    """`bridge_hard_coded_fields`; without it the value is the bridge's own, and the check tells it."""
    from megatron.bridge import AutoBridge

    if architecture not in registered():
        pytest.skip(f"Bridge {BRIDGE} or transformers {transformers.__version__} does not know {architecture}")
    config = configuration(architecture)
    provider = provider_for(config)
    if provider is None:
        pytest.skip(f"Bridge {BRIDGE} makes no provider of a bare {architecture} configuration")
    expected = {"rotary_base": THETA, "layernorm_epsilon": EPSILON, "moe_router_pre_softmax": True}
    field = MENDED[architecture]
    assert getattr(provider, field) == pytest.approx(expected[field])
    alone = AutoBridge.to_megatron_provider
    while hasattr(alone, "__verl_compat__"):
        alone = alone.__wrapped__
    bare = alone(AutoBridge.from_hf_config(config), load_weights=False)
    if getattr(bare, field) != pytest.approx(expected[field]):
        assert field in {difference.field for difference in compare(bare, config)[1]}


SCALINGS = {
    "llama3": {
        "rope_type": "llama3",
        "factor": 6.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 4096,
    },
    "yarn": {"rope_type": "yarn", "factor": 6.0, "original_max_position_embeddings": 4096},
    "linear": {"rope_type": "linear", "factor": 6.0},
    "longrope": {"rope_type": "longrope", "factor": 6.0, "short_factor": [1.0] * 8, "long_factor": [2.0] * 8},
}


@pytest.mark.parametrize("kind", sorted(SCALINGS))
def test_a_scaling_that_the_provider_does_not_have_is_told(kind, dense_checkpoint, caplog):
    """Qwen3 with each scaling type: either the provider has it, or the check names what is missing."""
    config = transformers.AutoConfig.from_pretrained(dense_checkpoint)
    if hasattr(config, "rope_parameters"):
        config.rope_parameters = {**SCALINGS[kind], "rope_theta": 10000.0}
    else:
        config.rope_scaling = dict(SCALINGS[kind])
    provider = provider_for(config)
    assert provider is not None
    has = {
        "llama3": getattr(provider, "rope_scaling", False) and provider.rope_scaling_factor == 6.0,
        # Bridge 0.3.1 reads YaRN's fields, and then its Qwen bridges say "rope" again
        "yarn": provider.position_embedding_type == "yarn" and provider.yarn_rotary_scaling_factor == 6.0,
        "linear": getattr(provider, "seq_len_interpolation_factor", None) == 6.0,
        "longrope": False,
    }[kind]
    told = [record.getMessage() for record in caplog.records if "check_model_config" in record.getMessage()]
    assert bool(told) != bool(has), (kind, told)


def test_a_natural_model_is_silent_and_overrides_are_shown_not_told(dense_checkpoint, caplog):
    _, provider = build_provider(dense_checkpoint, rotary_base=777)
    build_model(provider)
    assert STATE.entries["check_model_config"].outcome == "applied"
    found = integrity.results()["check_model_config"]
    assert found["differ"] == []
    assert found["compared"] >= 10
    assert found["overrides"]["rotary_base"][1] == "777"
    assert not [record for record in caplog.records if "check_model_config" in record.getMessage()]
    assert "fields equal" in integrity.summary_line()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_layers", 3),
        ("num_query_groups", 4),
        ("kv_channels", 8),
        ("rotary_base", 10001.0),
        ("layernorm_epsilon", 1e-5),
        ("vocab_size", 100),
        ("share_embeddings_and_output_weights", True),
        ("add_qkv_bias", True),
        ("num_moe_experts", 8),
        ("moe_router_topk", 1),
        ("moe_ffn_hidden_size", 16),
        ("window_size", None),
        ("moe_router_pre_softmax", True),
    ],
)
def test_each_field_is_seen_when_it_differs(field, value, moe_checkpoint):
    from megatron.bridge import AutoBridge

    bridge = AutoBridge.from_hf_pretrained(str(moe_checkpoint))
    provider = bridge.to_megatron_provider(load_weights=False)
    config = copy.deepcopy(bridge.hf_pretrained.config)
    if field == "window_size":
        config.use_sliding_window, config.sliding_window, config.layer_types = True, 64, None
    assert field not in {difference.field for difference in compare(provider, bridge.hf_pretrained.config)[1]}
    setattr(provider, field, value)
    assert field in {difference.field for difference in compare(provider, config)[1]}
