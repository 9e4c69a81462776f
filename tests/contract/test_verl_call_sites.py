"""verl's own modules, called as verl calls them, on the Bridge that is here."""

from __future__ import annotations

import importlib
import sys
from types import SimpleNamespace

import pytest
import torch
from packaging.version import Version

from support import assert_same_tensors, build_provider
from support.tiny import CPU_OVERRIDES
from support.versions import NATIVE, VERL
from verl_compat import status

if VERL is None:
    pytest.skip("verl is not installed", allow_module_level=True)

OWN_HOOKS = Version("0.8") > VERL  # verl 0.7 brings its own value model and PEFT code
MODULES = [
    "verl.models.mcore.bridge",
    "verl.utils.megatron_utils",
    "verl.workers.engine.megatron.transformer_impl",
    "verl.workers.config.megatron_peft",
    "verl.utils.checkpoint.megatron_checkpoint_manager",
]


@pytest.mark.parametrize("name", MODULES)
def test_module_imports(name):
    importlib.import_module(name)


@pytest.mark.parametrize("name", ["LinearForLastLayer", "freeze_moe_router", "make_value_model"])
def test_verl_binds_bridges_name_or_ours(name):
    """Not verl's own fall-back, which it takes in silence where Bridge's module cannot be imported."""
    from verl.models.mcore import bridge

    home = getattr(bridge, name).__module__
    if OWN_HOOKS:
        expected = "verl_compat.shims." if name == "freeze_moe_router" else bridge.__name__
    else:
        expected = "megatron.bridge." if NATIVE else "verl_compat.shims."
    assert home.startswith(expected)


def test_own_hooks_are_repaired_only_where_verl_uses_them():
    importlib.import_module("verl.models.mcore.bridge")
    outcome = status().outcome("verl_own_value_model_hooks")
    assert outcome in ({"applied", "late", "untested"} if OWN_HOOKS else {"not-needed"})


def peft_object(rank, **lora):
    from verl.workers.config.megatron_peft import get_peft_cls

    config = {"type": "lora", "rank": rank, "alpha": 16, "dropout": 0.0, "exclude_modules": [], **lora}
    config.setdefault("target_modules", ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"])
    return get_peft_cls(SimpleNamespace(lora=config), bridge=object(), provider=object(), dtype=torch.float32)


def test_get_peft_cls():
    peft = peft_object(8)
    assert (type(peft).__name__, peft.dim, peft.alpha) == ("LoRA", 8, 16)
    assert peft_object(0) is None


def build(checkpoint, *, value=False, freeze=False, peft=None, peft_config=None, ddp=False):
    """verl's make_megatron_module; what it builds, as a list of chunks."""
    from transformers import AutoConfig
    from verl.utils.megatron_utils import McoreModuleWrapperConfig, make_megatron_module

    bridge, provider = build_provider(checkpoint)
    wrap = McoreModuleWrapperConfig(is_value_model=value, wrap_with_ddp=ddp, use_distributed_optimizer=False)
    module, config = make_megatron_module(
        wrap_config=wrap,
        tf_config=None,
        hf_config=AutoConfig.from_pretrained(checkpoint),
        bridge=bridge,
        provider=provider,
        override_model_config={"moe_config": {"freeze_moe_router": freeze}},
        override_ddp_config={"grad_reduce_in_fp32": True} if ddp else None,
        peft_cls=peft,
        peft_config=peft_config,
    )
    assert config is not None
    return module


def routers(chunk):
    return {name: value for name, value in chunk.named_parameters() if ".router." in name}


@pytest.mark.parametrize("value", [False, True])
def test_router_is_frozen_for_actor_and_critic(moe_checkpoint, value):
    (chunk,) = build(moe_checkpoint, value=value, freeze=True)
    assert len(routers(chunk)) == 4
    assert not any(parameter.requires_grad for parameter in routers(chunk).values())
    assert type(chunk.output_layer).__name__ == ("LinearForLastLayer" if value else "ColumnParallelLinear")


def test_router_is_trained_unless_asked_for(moe_checkpoint):
    (chunk,) = build(moe_checkpoint, value=True)
    assert all(parameter.requires_grad for parameter in routers(chunk).values())


def test_ddp_wrapping(dense_checkpoint):
    (chunk,) = build(dense_checkpoint, ddp=True)
    assert chunk.ddp_config.grad_reduce_in_fp32
    assert not chunk.ddp_config.use_distributed_optimizer


def test_lora_and_its_checkpoint(dense_checkpoint, tmp_path):
    """verl builds with adapters, and loads them again by ``adapter_path``."""
    from megatron.bridge.training.checkpointing import apply_peft_adapter_filter_to_state_dict
    from megatron.core import dist_checkpointing

    if OWN_HOOKS:
        pytest.skip("verl 0.7 reads per-rank files of its own instead of a distributed checkpoint")
    peft = peft_object(4)
    (chunk,) = build(dense_checkpoint, peft=peft, peft_config={})
    adapters = {name: value for name, value in chunk.named_parameters() if "adapter" in name}
    assert {name for name, value in chunk.named_parameters() if value.requires_grad} == adapters.keys()
    with torch.no_grad():
        for parameter in adapters.values():
            parameter.normal_()
    path = tmp_path / "adapter"
    path.mkdir()
    sections = apply_peft_adapter_filter_to_state_dict({"model": chunk.sharded_state_dict()}, peft)
    dist_checkpointing.save(sections, str(path))

    (again,) = build(dense_checkpoint, peft=peft_object(4), peft_config={"adapter_path": str(path)})
    loaded = {name: value for name, value in again.named_parameters() if "adapter" in name}
    assert_same_tensors(loaded, adapters)


def configured_by_verl(checkpoint, **overrides):
    """verl's engine up to the finalized provider."""
    from transformers import AutoConfig
    from verl.workers.config import McoreEngineConfig
    from verl.workers.engine.megatron.transformer_impl import MegatronEngine

    model_config = SimpleNamespace(
        model_type="language_model",
        share_embeddings_and_output_weights=False,
        local_path=str(checkpoint),
        trust_remote_code=False,
        hf_config=AutoConfig.from_pretrained(checkpoint),
        mtp=SimpleNamespace(enable=False),
        lora={"rank": 0},
    )
    config = McoreEngineConfig(
        vanilla_mbridge=False,
        override_transformer_config={**CPU_OVERRIDES, "variable_seq_lengths": False, **overrides},
    )
    engine = SimpleNamespace(
        model_config=model_config,
        engine_config=config,
        optimizer_config=None,
        enable_routing_replay=False,
        _qat_enabled=False,
        _qat_config=None,
    )
    MegatronEngine._build_tf_config(engine)
    return engine.provider


def test_provider_as_verl_configures_it(dense_checkpoint):
    provider = configured_by_verl(dense_checkpoint, num_layers=2, attention_backend="unfused")
    assert provider.num_layers == 2
    assert (provider.params_dtype, provider.fp16, provider.bf16) == (torch.bfloat16, False, True)
    assert provider.moe_router_load_balancing_type == "none"
    assert provider.attention_backend.name == "unfused"


def test_unknown_override_is_refused(dense_checkpoint):
    """verl 0.9's own fall-back takes it in silence; verl asks hasattr first, so it finds ours."""
    if OWN_HOOKS:
        pytest.skip("verl 0.7 sets attributes itself, with any Bridge")
    with pytest.raises(AttributeError, match="recompute_granularty"):
        configured_by_verl(dense_checkpoint, recompute_granularty="full")


@pytest.fixture
def fallen_back(monkeypatch):
    """verl.models.mcore.bridge, imported while Bridge's train_utils cannot be."""
    from verl.models.mcore import bridge

    if OWN_HOOKS or Version("0.9") > VERL:
        pytest.skip("only verl 0.9 and newer fall back")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "megatron.bridge.training.utils.train_utils", None)
        importlib.reload(bridge)
    yield bridge
    importlib.reload(bridge)


def test_verls_fall_back_is_repaired(fallen_back, moe_checkpoint):
    assert fallen_back.LinearForLastLayer.__module__ == fallen_back.__name__
    assert status().outcome("verl_own_value_model_hooks") in {"applied", "untested"}
    (chunk,) = build(moe_checkpoint, value=True, freeze=True)
    assert type(chunk.output_layer) is fallen_back.LinearForLastLayer
    assert not any(parameter.requires_grad for parameter in routers(chunk).values())


def test_reload_undoes_the_repair(fallen_back):
    importlib.reload(fallen_back)
    assert fallen_back.make_value_model.__module__ != fallen_back.__name__
    assert status().outcome("verl_own_value_model_hooks") == "not-needed"
