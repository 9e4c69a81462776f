"""verl's own modules, imported and called: adapter_path, transformer_config.json, routing replay, dynamic CP."""

from __future__ import annotations

import dataclasses
import json
import threading
from types import SimpleNamespace

import pytest
import torch
from packaging.version import Version

import verl_compat
from support import build_provider
from support.versions import VERL
from verl_compat.shims.adapter_formats import AdapterFormatError

if VERL is None:
    pytest.skip("verl is not installed", allow_module_level=True)
OLD, V08 = Version("0.8") > VERL, Version("0.8") <= VERL < Version("0.9")


def applied(adapter: str) -> bool:
    return verl_compat.status().outcome(adapter) in ("applied", "late", "untested")


# --- transformer_config.json ---------------------------------------------------


@pytest.fixture
def save(tmp_path):
    """Let verl's checkpoint manager write the config of a provider; what it wrote, as text."""
    from verl.utils.checkpoint.megatron_checkpoint_manager import MegatronCheckpointManager

    def run(config):
        manager = MegatronCheckpointManager.__new__(MegatronCheckpointManager)
        vars(manager).update(
            transformer_config=config, rank=0, model=[], optimizer=None, lr_scheduler=None, peft_cls=None,
            bridge=object(), provider=config, vanilla_bridge=False, checkpoint_save_contents=["extra"],
            checkpoint_config=SimpleNamespace(async_save=False), use_dist_checkpointing=False,
            use_hf_checkpoint=True, use_megatron_fsdp=False, use_distributed_optimizer=False,
            previous_saved_paths=[], checkpoint_manifest=[],
        )  # fmt: skip
        if hasattr(manager, "_save_transformer_config"):  # verl >= 0.9
            manager._save_transformer_config(str(tmp_path))
        else:
            manager.register_checkpoint = manager.ensure_checkpoint_capacity = lambda *args: None
            manager.save_checkpoint(str(tmp_path), global_step=1)
        (file,) = tmp_path.rglob("transformer_config.json")
        return file.read_text()

    return run


@pytest.fixture
def config(dense_checkpoint):
    @dataclasses.dataclass
    class Nested:
        dtype: object = torch.bfloat16
        sizes: object = None

    _, provider = build_provider(dense_checkpoint)
    provider.layernorm_epsilon = float("inf")
    provider.no_sync_func = Nested.__init__
    provider.recompute_modules = {"mlp", "core_attn"}
    provider.moe_layer_freq = {1: Nested(sizes=torch.Size([2])), "1": torch.ones(2)}
    return provider


def refuse_constant(name):
    raise AssertionError(f"{name} is no JSON")


def test_transformer_config_is_whole_and_strict(save, config):
    before = dict(vars(config))
    done = json.loads(save(config), parse_constant=refuse_constant)
    assert applied("verl_0_7_transformer_config_json" if OLD else "verl_transformer_config_json")
    assert vars(config) == before
    assert done["params_dtype"] == "torch.float32"
    assert done["attention_backend"].startswith("AttnBackend.")
    assert done["layernorm_epsilon"] == "Infinity"
    assert done["no_sync_func"].endswith("Nested.__init__")
    assert done["recompute_modules"] == ["core_attn", "mlp"]
    assert done["moe_layer_freq"]["1 (int)"] == {"dtype": "torch.bfloat16", "sizes": [2]}
    assert done["moe_layer_freq"]["1"]["values"] == [1.0, 1.0]
    assert {item.name for item in dataclasses.fields(config)} <= set(done)


@pytest.mark.skipif(not OLD, reason="only verl 0.7 deletes attributes while it saves")
def test_a_value_that_cannot_be_copied_neither_stops_the_save_nor_costs_attributes(save, config):
    config.moe_layer_freq = threading.Lock()
    before = dict(vars(config))
    assert json.loads(save(config))["moe_layer_freq"] == "<_thread.lock>"
    assert vars(config) == before


# --- lora.adapter_path -----------------------------------------------------------


@pytest.fixture(scope="module")
def lora():
    pytest.importorskip("verl.utils.megatron_utils")
    from megatron.bridge.peft.utils import create_peft

    return lambda: create_peft({"type": "lora", "rank": 4, "target_modules": ["linear_proj"]})


@pytest.fixture
def make(dense_checkpoint, lora):
    """verl's make_megatron_module on a fresh provider; the model chunk."""
    from verl.utils.megatron_utils import McoreModuleWrapperConfig, make_megatron_module

    def run(peft_config):
        bridge, provider = build_provider(dense_checkpoint)
        model, _ = make_megatron_module(
            wrap_config=McoreModuleWrapperConfig(wrap_with_ddp=False),
            tf_config=None,
            hf_config=bridge.hf_pretrained.config,
            bridge=bridge,
            provider=provider,
            peft_cls=lora(),
            peft_config=peft_config,
        )
        return model[0]

    return run


def adapters(chunk):
    while hasattr(chunk, "module"):
        chunk = chunk.module
    return {name: p for name, p in chunk.named_parameters() if ".adapter." in name}


@pytest.fixture(scope="module")
def saved(tmp_path_factory, dense_checkpoint, lora):
    """One adapter on disk in both formats, and its tensors."""
    from megatron.bridge.peft.utils import create_peft_hook

    from support import build_model
    from verl_compat.shims.adapter_convert import convert_adapter_checkpoint, rank_file

    folder = tmp_path_factory.mktemp("adapter")
    _, provider = build_provider(dense_checkpoint)
    (chunk,) = build_model(provider, hooks=[create_peft_hook(lora())])
    with torch.no_grad():
        for number, parameter in enumerate(adapters(chunk).values()):
            parameter.fill_(7 + number)
    tensors = {name: p.detach().clone() for name, p in adapters(chunk).items()}
    old, new = str(folder / "old"), str(folder / "new")
    (folder / "old").mkdir()
    if OLD:
        from verl.utils.megatron_peft_utils import save_adapter_checkpoint

        save_adapter_checkpoint([chunk], old)
    else:
        torch.save({"adapter_state_dict": tensors}, rank_file(old))
    convert_adapter_checkpoint(chunk, old, new)
    return SimpleNamespace(old=old, new=new, tensors=tensors)


def test_adapter_path_of_a_plain_dict_is_loaded(make, saved):
    loaded = adapters(make({"rank": 4, "adapter_path": saved.old if OLD else saved.new}))
    assert loaded.keys() == saved.tensors.keys()
    for name, tensor in saved.tensors.items():
        assert torch.equal(loaded[name].float(), tensor.float()), name
    assert applied("verl_0_7_adapter_path" if OLD else "verl_adapter_format")


def test_adapter_of_the_other_format_is_named(make, saved):
    with pytest.raises(AdapterFormatError) as caught:
        make({"rank": 4, "adapter_path": saved.new if OLD else saved.old})
    text = str(caught.value)
    assert "per-rank .pt files (mp_rank_XX_adapter.pt, written by verl 0.7)" in text
    assert "a Megatron distributed checkpoint" in text
    assert "verl_compat.convert_adapter_checkpoint(model, source, target)" in text


def test_no_adapter_path_builds_a_fresh_adapter(make):
    assert all(name.endswith(("linear_in.weight", "linear_out.weight")) for name in adapters(make({"rank": 4})))


# --- the engine of verl 0.8 -----------------------------------------------------


@pytest.fixture
def engine(moe_checkpoint):
    if not V08:
        pytest.skip("the engine is repaired on verl 0.8 only; 0.9 does it right")
    from transformers import AutoConfig
    from verl.workers.engine.megatron.transformer_impl import MegatronEngine

    made = MegatronEngine.__new__(MegatronEngine)
    made.model_config = SimpleNamespace(
        local_path=str(moe_checkpoint), trust_remote_code=False, lora={}, mtp=SimpleNamespace(enable=False),
        hf_config=AutoConfig.from_pretrained(moe_checkpoint),
    )  # fmt: skip
    made.engine_config = SimpleNamespace(
        override_transformer_config={"num_layers": 2, "moe_permute_fusion": False}, dynamic_context_parallel=False,
        dtype="float32",
        vanilla_mbridge=False, tensor_model_parallel_size=1, pipeline_model_parallel_size=1,
        expert_model_parallel_size=1, expert_tensor_parallel_size=1, virtual_pipeline_model_parallel_size=None,
        context_parallel_size=1, sequence_parallel=False, max_seqlen_per_dp_cp_rank=None,
    )  # fmt: skip
    made.enable_routing_replay = False
    made._qat_enabled = False
    return made


@pytest.mark.parametrize("replay", [False, True])
def test_routing_replay(engine, replay):
    engine.enable_routing_replay = replay
    engine._build_tf_config()
    assert applied("verl_0_8_routing_replay")
    assert engine.enable_routing_replay is replay
    assert engine.provider.num_layers == 2
    assert engine.provider.moe_router_load_balancing_type == "none"
    assert getattr(engine.provider, "enable_routing_replay", False) is replay
    assert engine.provider.moe_enable_routing_replay is replay  # a field of megatron-core >= 0.16


def test_dynamic_context_parallelism_is_refused_clearly(engine):
    engine.engine_config.dynamic_context_parallel = True
    with pytest.raises(RuntimeError, match=r"dynamic_context_parallel=True is not possible: megatron-core \d"):
        engine._init_device_mesh()
    assert applied("verl_0_8_dynamic_cp")
