"""configure_provider on the real providers of each Bridge release."""

import os

import pytest
import torch

from support import build_model, build_provider
from verl_compat.shims.configure_provider import attention_backend, configure_provider, refuse_dynamic_cp
from verl_compat.shims.provider_settings import recorded_settings


@pytest.fixture(autouse=True)
def attention_variables():
    """Building a layer sets Transformer Engine's switches, which the next backend would trip over."""
    before = {name: os.environ.pop(name, None) for name in ("NVTE_FLASH_ATTN", "NVTE_FUSED_ATTN", "NVTE_UNFUSED_ATTN")}
    yield
    for name, value in before.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value


@pytest.fixture
def provider(moe_checkpoint):
    return build_provider(moe_checkpoint, finalize=False)[1]


def sources(provider):
    last = recorded_settings()[-1]
    assert last.provider == type(provider).__name__
    return {setting.name: (setting.value, setting.source) for setting in last.settings}


def test_defaults_of_verl(provider):
    assert configure_provider(provider) is provider
    assert provider.attention_backend.name == "flash"
    assert provider.variable_seq_lengths is True
    assert provider.moe_token_dispatcher_type == "alltoall"
    assert provider.moe_router_load_balancing_type == "none"
    told = sources(provider)
    assert told["attention_backend"] == ("AttnBackend.flash", "default")
    assert told["moe_router_load_balancing_type"] == ("none", "default")
    assert told["moe_aux_loss_coeff"][1] == "provider"


def test_trainer_wins_over_defaults_and_user_over_both(provider):
    configure_provider(
        provider,
        {"moe_router_load_balancing_type": "aux_loss", "num_layers": 2, "attention_backend": "local"},
        {"num_layers": 3, "moe_token_dispatcher_type": "allgather", "variable_seq_lengths": False},
        dtype=torch.float32,
    )
    assert (provider.num_layers, provider.moe_token_dispatcher_type) == (2, "allgather")
    assert provider.moe_router_load_balancing_type == "aux_loss"
    assert (provider.params_dtype, provider.fp16, provider.bf16) == (torch.float32, False, False)
    told = sources(provider)
    assert told["num_layers"] == (2, "override_transformer_config")
    assert told["moe_token_dispatcher_type"] == ("allgather", "provider_overrides")
    assert told["attention_backend"] == ("AttnBackend.local", "override_transformer_config")


def test_configured_provider_builds_what_it_says(provider):
    configure_provider(provider, {"num_layers": 2, "attention_backend": "local"})
    (chunk,) = build_model(provider)
    assert len(chunk.decoder.layers) == 2
    assert chunk.config.moe_router_load_balancing_type == "none"
    assert sources(provider)["moe_token_dispatcher_type"] == ("alltoall", "default")


def test_inputs_are_not_changed(provider):
    users, trainers = {"enable_routing_replay": False}, {"num_layers": 2}
    configure_provider(provider, users, trainers)
    assert (users, trainers) == ({"enable_routing_replay": False}, {"num_layers": 2})


def test_finalize_runs_once_after_pre_finalize(provider, monkeypatch):
    order = []
    original = type(provider).finalize
    monkeypatch.setattr(type(provider), "finalize", lambda self: (order.append("finalize"), original(self)))
    configure_provider(provider, {"num_layers": 2}, pre_finalize=lambda it: order.append(it.num_layers))
    assert order == [2, "finalize"]
    assert "finalize" not in vars(provider)


def test_a_pre_finalize_that_raises_leaves_no_trace(provider):
    def fail(_):
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        configure_provider(provider, pre_finalize=fail)
    assert "finalize" not in vars(provider)


def test_unknown_names_are_one_error_with_close_matches(provider):
    provider.num_layers = 4
    with pytest.raises(AttributeError) as caught:
        configure_provider(
            provider,
            {"num_layer": 2, "enable_routing_replay": True},
            {"moe_token_dispatcher": "x", "num_layers": 3},
        )
    text = str(caught.value)
    assert "did you mean num_layers" in text
    assert "moe_token_dispatcher_type" in text
    assert provider.num_layers == 4
    assert not hasattr(provider, "num_layer")
    assert not getattr(provider, "enable_routing_replay", False)


@pytest.mark.parametrize("name", ["enable_routing_replay", "moe_enable_routing_replay"])
@pytest.mark.parametrize("value", [True, False])
def test_routing_replay_by_either_name(provider, name, value):
    has_field = hasattr(type(provider), "moe_enable_routing_replay")
    configure_provider(provider, {name: value})
    assert provider.enable_routing_replay is value  # what the router of verl 0.7 and 0.8 reads
    if has_field:  # megatron-core >= 0.16
        assert provider.moe_enable_routing_replay is value


def test_dynamic_context_parallelism_is_refused_before_anything_is_set(provider):
    before = dict(vars(provider))
    for asked in (
        {"dynamic_context_parallel": True},
        {"dynamic_context_parallel": False, "max_seqlen_per_dp_cp_rank": 4096},
    ):
        with pytest.raises(RuntimeError, match=r"dynamic_context_parallel=True is not possible: megatron-core \d"):
            configure_provider(provider, asked)
    assert vars(provider) == before


def test_dynamic_context_parallelism_switched_off_is_no_error(provider):
    configure_provider(provider, {"dynamic_context_parallel": False})
    assert not hasattr(provider, "dynamic_context_parallel")
    refuse_dynamic_cp({"dynamic_context_parallel": True}, supported=True)
    refuse_dynamic_cp({"max_seqlen_per_dp_cp_rank": 4096}, supported=False)


def test_attention_backend_names(provider):
    from megatron.core.transformer.enums import AttnBackend

    assert attention_backend("fused") is AttnBackend.fused
    assert attention_backend("AttnBackend.auto") is AttnBackend.auto
    assert attention_backend(AttnBackend.local) is AttnBackend.local
    with pytest.raises(ValueError, match="attention_backend 'flsh' is unknown: expected one of flash, "):
        configure_provider(provider, {"attention_backend": "flsh"})
