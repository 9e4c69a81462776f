"""Diagnoses: said once, while the user can still act, with versions and a way out; silent where nothing is wrong.

Stand-ins with the real signatures: ``get_peft_cls(model_config, bridge, provider, dtype=None)`` (verl 0.7.0 to
0.9.1), ``MegatronEngine``'s methods, ``provide_distributed_model(self, ...)`` (Bridge 0.3.0 to 0.6.2), and so on.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest

PEFT = "def get_peft_cls(model_config, bridge, provider, dtype=None):\n    return 'peft'\n"


@pytest.fixture
def peft(stubs):
    """Call verl's get_peft_cls; returns the ids of the adapters that spoke."""

    def call(said, lora, provider, verl="0.8.0", bridge="0.5.1", vllm=None):
        stubs.dist("verl", verl, workers__config__megatron_peft=PEFT)
        stubs.dist("megatron-bridge", bridge)
        if vllm:
            stubs.dist("vllm", vllm)
        config = SimpleNamespace(lora=lora, hf_config=SimpleNamespace(model_type="qwen3_moe"))
        get_peft_cls = stubs.load("verl.workers.config.megatron_peft").get_peft_cls
        for _ in range(2):
            assert get_peft_cls(config, "bridge", SimpleNamespace(**provider), dtype=None) == "peft"
        return [text.rpartition("VERL_COMPAT_DISABLE=")[2].split()[0] for text in said()]

    return call


MOE = {
    "num_moe_experts": 8,
    "tensor_model_parallel_size": 1,
    "expert_model_parallel_size": 1,
    "expert_tensor_parallel_size": 1,
}
RANK8 = {"rank": 8, "merge": True}


@pytest.mark.parametrize(
    ("layout", "told"),
    [
        ({}, False),
        ({"tensor_model_parallel_size": 2, "expert_tensor_parallel_size": 2}, True),
        ({"tensor_model_parallel_size": 2}, True),
        ({"tensor_model_parallel_size": 2, "expert_model_parallel_size": 2}, False),
        ({"expert_model_parallel_size": 2, "gradient_accumulation_fusion": True}, True),
        ({"expert_model_parallel_size": 2, "gradient_accumulation_fusion": False}, False),
        ({"expert_tensor_parallel_size": None}, False),
        ({"tensor_model_parallel_size": 2, "expert_tensor_parallel_size": 2, "num_moe_experts": None}, False),
    ],
)
def test_expert_lora_layouts(peft, said, layout, told):
    """Megatron-Bridge#5634, #5229, #6009."""
    assert peft(said, RANK8, {**MOE, **layout}) == (["bridge_expert_lora_layout"] if told else [])


@pytest.mark.parametrize("lora", [{"rank": 0}, {}, {"rank": 8, "target_modules": ["linear_qkv", "linear_proj"]}])
def test_expert_lora_without_lora_on_experts(peft, said, lora):
    assert (
        peft(said, {**lora, "merge": True}, {**MOE, "expert_tensor_parallel_size": 2, "tensor_model_parallel_size": 2})
        == []
    )


@pytest.mark.parametrize(
    ("bridge", "expert", "told"), [("0.4.2", 2, True), ("0.3.1", 4, True), ("0.4.2", 1, False), ("0.5.0", 2, False)]
)
def test_expert_lora_on_early_bridge(peft, said, bridge, expert, told):
    """SkyRL#893, Megatron-Bridge#1936: from Bridge 0.5 on expert adapters are merged."""
    spoke = peft(said, RANK8, {**MOE, "expert_model_parallel_size": expert}, bridge=bridge)
    assert spoke == (["bridge_lt_0_5_moe_lora_merge"] if told else [])


@pytest.mark.parametrize(
    ("verl", "vllm", "merge", "told"),
    [
        ("0.8.0", "0.18.0", False, True),
        ("0.7.1", "0.16.0", False, True),
        ("0.8.0", "0.18.0", True, False),
        ("0.8.0", None, False, False),
        ("0.9.0", "0.24.0", False, False),
        ("0.7.0", "0.12.0", False, False),
    ],
)
def test_lora_that_is_not_merged(peft, said, verl, vllm, merge, told):
    """verl#6256, verl#7327; verl 0.7.0 syncs no adapters, verl 0.9 decides name by name."""
    lora = {"rank": 8, "merge": merge, "target_modules": ["linear_qkv"]}
    spoke = peft(said, lora, MOE, verl=verl, vllm=vllm)
    assert spoke == (["verl_lt_0_9_lora_rollout_names"] if told else [])
    assert all("qwen3_moe" in text and "merge=True" in text for text in said())


def test_lora_that_is_not_merged_in_a_dense_language_model(peft, said):
    """Its base-weight names are right on every verl."""
    assert peft(said, {"rank": 8, "merge": False}, {"num_moe_experts": None}, verl="0.8.0", vllm="0.18.0") == []


@pytest.mark.parametrize(
    ("bridge", "merge", "told"), [("0.6.2", False, True), ("0.6.2", True, False), ("0.5.1", False, False)]
)
def test_expert_adapters_for_vllm(peft, said, bridge, merge, told):
    """SkyRL#1852."""
    spoke = peft(said, {"rank": 8, "merge": merge}, MOE, verl="0.9.1", bridge=bridge, vllm="0.24.0")
    assert spoke == (["bridge_ge_0_6_moe_lora_rollout"] if told else [])


ENGINE = """
    class MegatronEngine:
        def __init__(self, **settings):
            self.__dict__.update(settings)
        def _init_device_mesh(self):
            return "mesh"
        def _build_megatron_module(self):
            return "module"
        def get_per_tensor_param(self, **kwargs): ...
"""


@pytest.mark.parametrize(
    ("settings", "method", "adapter"),
    [
        ({"use_dist_checkpointing": True}, "_build_megatron_module", "verl_lora_on_dist_checkpoint"),
        ({"use_dist_checkpointing": False}, "_build_megatron_module", None),
        ({"use_dist_checkpointing": True, "peft_cls": None}, "_build_megatron_module", None),
        (
            {"optimizer": "muon", "use_layer_wise_distributed_optimizer": True},
            "_build_megatron_module",
            "verl_muon_layer_wise",
        ),
        ({"optimizer": "adam", "use_layer_wise_distributed_optimizer": True}, "_build_megatron_module", None),
        ({"optimizer": "muon"}, "_build_megatron_module", None),
    ],
)
def test_engine_settings(stubs, said, settings, method, adapter):
    """miles#2797, verl#7120."""
    stubs.dist("verl", "0.9.1", workers__engine__megatron__transformer_impl=ENGINE)
    stubs.dist("megatron-core", "0.18.2")
    cls = stubs.load("verl.workers.engine.megatron.transformer_impl").MegatronEngine
    optimizer = {key: settings[key] for key in ("optimizer", "use_layer_wise_distributed_optimizer") if key in settings}
    engine = cls(
        engine_config=SimpleNamespace(**settings), peft_cls=settings.get("peft_cls", "lora"), optimizer_config=optimizer
    )
    for _ in range(2):
        assert getattr(engine, method)() in ("mesh", "module")
    assert len(said()) == (adapter is not None)
    assert all(adapter in text and "verl 0.9.1" in text and "megatron-core 0.18.2" in text for text in said())


PROVIDER = """
    class ModelProviderMixin:
        def provide_distributed_model(self, ddp_config=None, **kwargs):
            return ["model"]
"""


@pytest.fixture
def provide(stubs):
    def call(bridge, verl="0.8.0", **settings):
        stubs.dist("verl", verl)
        stubs.dist("megatron-bridge", bridge, models__model_provider=PROVIDER)
        provider = stubs.load("megatron.bridge.models.model_provider").ModelProviderMixin()
        provider.__dict__.update(settings)
        assert provider.provide_distributed_model(ddp_config=None) == ["model"]

    return call


ROUTER = {
    "num_moe_experts": 8,
    "moe_router_load_balancing_type": "global_aux_loss",
    "moe_aux_loss_coeff": 0.001,
    "calculate_per_token_loss": True,
}


def test_router_settings_in_force_are_shown(provide, said):
    """verl#5187: the values are those that the model is built with."""
    provide("0.5.1", **ROUTER)
    (text,) = said()
    for value in ("'global_aux_loss'", "0.001", "calculate_per_token_loss=True", "megatron-bridge 0.5.1"):
        assert value in text


@pytest.mark.parametrize(
    "other",
    [
        {"moe_router_load_balancing_type": "none"},
        {"moe_aux_loss_coeff": 0.0},
        {"num_moe_experts": None},
        {"moe_aux_loss_coeff": [0.0, 0]},
    ],
)
def test_router_without_auxiliary_loss_is_silent(provide, said, other):
    provide("0.5.1", **{**ROUTER, **other})
    assert said() == []


@pytest.mark.parametrize(
    ("bridge", "layers", "pipeline", "told"),
    [
        ("0.3.1", 1, 2, True),
        ("0.3.1", 1, 1, False),
        ("0.3.1", None, 2, False),
        ("0.3.1", 0, 2, False),
        ("0.4.0", 1, 2, False),
    ],
)
def test_mtp_at_pipeline_parallelism(provide, said, bridge, layers, pipeline, told):
    """NeMo-RL#2471: Bridge 0.4 skips the second embedding when it streams weights."""
    provide(bridge, mtp_num_layers=layers, pipeline_model_parallel_size=pipeline)
    assert len(said()) == told


@pytest.mark.parametrize(("bridge", "told"), [("0.4.0", True), ("0.4.1", True), ("0.4.2", False), ("0.5.1", False)])
def test_gpt_oss(stubs, said, bridge, told):
    """Megatron-Bridge#3162."""
    source = "class GPTOSSBridge:\n    def provider_bridge(self, hf_pretrained):\n        return 'provider'\n"
    stubs.dist("megatron-bridge", bridge, models__gpt_oss__gpt_oss_bridge=source)
    made = stubs.load("megatron.bridge.models.gpt_oss.gpt_oss_bridge").GPTOSSBridge()
    assert made.provider_bridge("hf") == "provider"
    assert len(said()) == told


@pytest.mark.parametrize(("core", "told"), [("0.16.1", True), ("0.17.1", True), ("0.18.0", False), ("0.19.2", False)])
def test_gated_delta_net(stubs, said, core, told):
    """Megatron-LM#3798: said when the first layer is built."""
    stubs.dist("verl", "0.8.0")
    stubs.dist(
        "megatron-core", core, ssm__gated_delta_net="class GatedDeltaNet:\n    def __init__(self, config): ...\n"
    )
    layer = stubs.load("megatron.core.ssm.gated_delta_net").GatedDeltaNet
    layer("config"), layer("config")
    assert len(said()) == told


FSDP = """
    class FSDPCheckpointManager:
        def __init__(self, model, optimizer=None, lr_scheduler=None, processing_class=None, checkpoint_config=None,
                     trust_remote_code=False, **kwargs):
            self.checkpoint_config = checkpoint_config
"""


@pytest.mark.parametrize("how", [lambda c: ((), {"checkpoint_config": c}), lambda c: (("o", "l", "p", c), {})])
@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"async_save": True}, True),
        ({"async_save": False}, False),
        (SimpleNamespace(async_save=True), True),
        (None, False),
    ],
)
def test_fsdp_async_save(stubs, said, how, config, told):
    """verl#7952."""
    stubs.dist("verl", "0.9.1", utils__checkpoint__fsdp_checkpoint_manager=FSDP)
    args, kwargs = how(config)
    made = stubs.load("verl.utils.checkpoint.fsdp_checkpoint_manager").FSDPCheckpointManager("model", *args, **kwargs)
    assert made.checkpoint_config is config
    assert len(said()) == told


def test_swiglu_optimizer_state(stubs, said):
    """Megatron-LM#5265: the error goes on unchanged, and is explained once; other errors are not."""
    stubs.dist(
        "megatron-core",
        "0.18.2",
        transformer__fsdp_dtensor_checkpoint="""
        def handle_swiglu_in_state_dict(model, model_state_dict, optimizer_state_dict):
            raise optimizer_state_dict
    """,
    )
    handle = stubs.load("megatron.core.transformer.fsdp_dtensor_checkpoint").handle_swiglu_in_state_dict
    error = AttributeError("'Tensor' object has no attribute 'to_local'")
    for _ in range(2):
        with pytest.raises(AttributeError) as raised:
            handle(None, None, error)
        assert raised.value is error
    with pytest.raises(KeyError):
        handle(None, None, KeyError("x"))
    (text,) = said()
    assert "to_local" in text
    assert "megatron-core 0.18.2" in text


@pytest.mark.parametrize(
    ("error", "told"), [(TypeError("cannot pickle code objects"), True), (OSError("disk full"), False)]
)
def test_sync_save(stubs, said, error, told):
    """Megatron-Bridge#4639."""
    stubs.dist(
        "megatron-bridge",
        "0.6.2",
        training__checkpointing="""
        def save_checkpoint(state, model, optimizer, opt_param_scheduler, num_floating_point_operations_so_far):
            raise state
    """,
    )
    with pytest.raises(type(error)):
        stubs.load("megatron.bridge.training.checkpointing").save_checkpoint(error, 1, 2, 3, 4)
    assert len(said()) == told


def test_a_check_that_fails_never_stands_in_the_way(stubs, said):
    stubs.dist("verl", "0.9.1", workers__config__megatron_peft=PEFT)
    stubs.dist("megatron-bridge", "0.6.2")
    assert stubs.load("verl.workers.config.megatron_peft").get_peft_cls(object(), None, None) == "peft"
    config = SimpleNamespace(lora={"rank": "eight"})
    assert stubs.load("verl.workers.config.megatron_peft").get_peft_cls(config, None, None) == "peft"
    assert said() == []
