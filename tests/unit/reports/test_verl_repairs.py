"""Repairs of single verl, Bridge, mbridge and vLLM releases.

Stand-ins: verl's engine, checkpoint manager and rollout need Ray, vLLM or a GPU; Bridge's model_bridge needs
Transformer Engine.  Their signatures are those of the releases named in each test.
"""

from __future__ import annotations

import copy
import inspect
import pickle
import sys
from types import SimpleNamespace

import pytest

from verl_compat.shims import verl_repairs
from verl_compat.state import STATE

AUTO_BRIDGE = """
    class AutoBridge:
        def export_hf_weights(self, model, cpu=False, show_progress=True, conversion_tasks=None,
                              merge_adapter_weights=True):
            yield "a", model
"""


@pytest.mark.parametrize(("verl", "has"), [("0.7.0", True), ("0.7.1", False), ("0.8.0", False)])
def test_export_weights_for_verl_0_7_0_only(stubs, verl, has):
    """verl#4836: verl 0.7.0's engine calls self.bridge.export_weights(self.module)."""
    stubs.dist("verl", verl)
    stubs.dist("megatron-bridge", "0.5.1", models__conversion__auto_bridge=AUTO_BRIDGE)
    bridge = stubs.load("megatron.bridge.models.conversion.auto_bridge").AutoBridge()
    assert hasattr(bridge, "export_weights") is has
    if has:
        assert list(bridge.export_weights("model")) == [("a", "model")]


CHECKPOINT_MANAGER = """
    def save_dist_checkpointing(sharded_state_dict, ckpt_path, async_save=False, content_metadata=None): ...

    class MegatronCheckpointManager:
        def __init__(self, config, checkpoint_config, bridge, vanilla_bridge=False):
            self.checkpoint_config, self.bridge, self.vanilla_bridge = checkpoint_config, bridge, vanilla_bridge
        def save(self):
            self.bridge.save_hf_weights("model", "path", strict=self.checkpoint_config.strict)
            self.bridge.save_hf_weights("model", "path")
"""


class Bridge:
    """save_hf_weights of Bridge 0.5.1."""

    def __init__(self):
        self.strict = []

    def save_hf_weights(self, model, path, show_progress=True, strict=True, merge_adapter_weights=True):
        self.strict.append(strict)


def manager(stubs, verl, strict, vanilla=False):
    stubs.dist("verl", verl, utils__checkpoint__megatron_checkpoint_manager=CHECKPOINT_MANAGER)
    cls = stubs.load("verl.utils.checkpoint.megatron_checkpoint_manager").MegatronCheckpointManager
    return cls("config", SimpleNamespace(strict=strict), Bridge(), vanilla_bridge=vanilla)


def test_strict_is_honoured_in_both_places(stubs):
    """verl#7264."""
    made = manager(stubs, "0.8.0", strict=False)
    made.save()
    assert made.bridge.strict == [False, False]
    made.bridge.save_hf_weights("model", "path", strict=True)
    made.bridge.save_hf_weights("model", "path", True, True)
    assert made.bridge.strict[2:] == [True, True]


def test_strict_proxy_is_a_bridge_for_everybody_else(stubs):
    made = manager(stubs, "0.8.0", strict=False)
    assert isinstance(made.bridge, Bridge)
    assert copy.deepcopy(made.bridge).strict == []
    assert pickle.loads(pickle.dumps(made.bridge)).strict == []
    assert inspect.signature(type(made)) == inspect.signature(type(made).__init__.__wrapped__).replace(
        parameters=list(inspect.signature(type(made).__init__.__wrapped__).parameters.values())[1:]
    )


@pytest.mark.parametrize(
    ("verl", "strict", "vanilla"), [("0.8.0", True, False), ("0.8.0", False, True), ("0.9.0", False, False)]
)
def test_strict_bridge_itself_where_nothing_is_wrong(stubs, verl, strict, vanilla):
    assert type(manager(stubs, verl, strict, vanilla).bridge) is Bridge


MTP_0_8 = """
    def check_mtp_config(model_config, engine_config):
        if not model_config.mtp.enable and model_config.hf_config.num_nextn_predict_layers:
            engine_config.override_transformer_config["mtp_num_layers"] = 0
"""


@pytest.mark.parametrize("enable", [True, False])
@pytest.mark.parametrize("vanilla", [True, False])
@pytest.mark.parametrize("verl", ["0.7.1", "0.8.0", "0.9.0"])
def test_mtp_that_is_off_stays_off(stubs, verl, enable, vanilla):
    """verl#6626: the configuration was cleared by HFModelConfig already; Bridge reads the checkpoint's again."""
    stubs.dist(
        "verl",
        verl,
        utils__megatron_utils=MTP_0_8,
        workers__engine__megatron__transformer_impl="from verl.utils.megatron_utils import check_mtp_config\n",
    )
    module = stubs.load("verl.workers.engine.megatron.transformer_impl")
    overrides = {"mtp_loss_scaling_factor": 0.1}
    module.check_mtp_config(
        SimpleNamespace(mtp=SimpleNamespace(enable=enable), hf_config=SimpleNamespace(num_nextn_predict_layers=0)),
        SimpleNamespace(override_transformer_config=overrides, vanilla_mbridge=vanilla),
    )
    repaired = verl != "0.9.0" and not enable and not vanilla
    assert overrides == ({"mtp_num_layers": None} if repaired else {"mtp_loss_scaling_factor": 0.1})


ENGINE = """
    class MegatronEngine:
        peft_cls = None
        optimizer_config = None
        vanilla_bridge = False
        def __init__(self, engine_config):
            self.engine_config = engine_config
        def _init_device_mesh(self):
            return "mesh"
        def _build_megatron_module(self):
            return dict(self.engine_config.override_ddp_config or {})
        def get_per_tensor_param(self, base_sync_done=False, **kwargs):
            return iter(self.weights), "peft"
"""


@pytest.fixture
def engine(stubs, monkeypatch):
    def make(verl="0.9.0", enable="verl_lt_0_9_1_ddp_grad_dtype", overrides=None, optimizer=None, vanilla=False):
        stubs.dist("verl", verl, workers__engine__megatron__transformer_impl=ENGINE)
        monkeypatch.setenv("VERL_COMPAT_ENABLE", enable)
        STATE.forget_switches()
        cls = stubs.load("verl.workers.engine.megatron.transformer_impl").MegatronEngine
        made = cls(SimpleNamespace(override_ddp_config={} if overrides is None else overrides))
        made.optimizer_config, made.vanilla_bridge = optimizer, vanilla
        return made

    return make


@pytest.mark.parametrize(
    ("optimizer", "overrides", "expected"),
    [
        ({"lr": 1e-6}, {}, {"grad_reduce_in_fp32": True}),
        ({"use_precision_aware_optimizer": True, "main_grads_dtype": "bf16"}, {}, {"grad_reduce_in_fp32": False}),
        (
            {"use_precision_aware_optimizer": True, "main_grads_dtype": "torch.float32"},
            {},
            {"grad_reduce_in_fp32": True},
        ),
        ({"main_grads_dtype": "bf16"}, {}, {"grad_reduce_in_fp32": True}),
        ({"lr": 1e-6}, {"grad_reduce_in_fp32": False}, {"grad_reduce_in_fp32": False}),
        (None, {}, {}),
    ],
)
def test_gradient_dtype_when_asked_for(engine, optimizer, overrides, expected):
    """verl#7485; the right result is that of verl 0.9.1's _resolve_override_ddp_config."""
    made = engine(optimizer=optimizer, overrides=dict(overrides))
    assert made._build_megatron_module() == expected
    assert made.engine_config.override_ddp_config == overrides


@pytest.mark.parametrize("how", [{"enable": ""}, {"verl": "0.9.1"}, {"vanilla": True}])
def test_gradient_dtype_is_untouched_unless_asked_for(engine, how):
    assert engine(optimizer={"lr": 1e-6}, **how)._build_megatron_module() == {}


@pytest.mark.parametrize(
    ("fields", "expected"), [("param_name, weight, kind", "applied"), ("param_name, weight", "not-needed")]
)
def test_wider_weight_tuples(stubs, engine, fields, expected):
    """Megatron-Bridge#1996: no release has three fields; a fork does."""
    body = "".join(f"\n            {field.strip()}: object" for field in fields.split(","))
    stubs.dist(
        "megatron-bridge",
        "0.6.2",
        models__conversion__model_bridge=f"""
        from typing import NamedTuple
        class HFWeightTuple(NamedTuple):{body}
    """,
    )
    made = engine(verl="0.9.1")
    assert stubs.outcome("verl_weight_tuple_width") == expected
    assert "megatron.bridge.models.conversion.model_bridge" not in sys.modules
    made.weights = [("a", 1, "x"), ("b", 2, "y")] if expected == "applied" else [("a", 1), ("b", 2)]
    weights, peft = made.get_per_tensor_param()
    assert list(weights) == [("a", 1), ("b", 2)]
    assert peft == "peft"


class Stack:
    """A 3-D tensor: shape, ndim, and slices that remember themselves."""

    def __init__(self, *shape, at=()):
        self.shape, self.ndim, self.at = shape, len(shape), at

    def __getitem__(self, key):
        return (*self.at, key)


def test_stacked_experts_are_split_when_asked_for(engine):
    """NeMo-RL#3403: [E, 2I, H] is gate rows, then up rows."""
    made = engine(verl="0.9.1", enable="verl_split_stacked_experts")
    made.weights = [
        ("m.layers.0.mlp.experts.gate_up_proj", Stack(2, 6, 4)),
        ("m.layers.0.mlp.experts.down_proj", Stack(1, 4, 3)),
        ("m.norm.weight", Stack(4)),
    ]
    weights = dict(made.get_per_tensor_param()[0])
    base = "m.layers.0.mlp.experts"
    assert weights[f"{base}.1.gate_proj.weight"] == ((1, slice(None, 3, None)),)
    assert weights[f"{base}.1.up_proj.weight"] == ((1, slice(3, None, None)),)
    assert weights[f"{base}.0.down_proj.weight"] == (0,)
    assert isinstance(weights["m.norm.weight"], Stack)
    assert len(weights) == 6


def test_stacked_experts_pass_by_default(engine):
    made = engine(verl="0.9.1", enable="")
    made.weights = [("m.experts.gate_up_proj", Stack(2, 6, 4))]
    assert list(dict(made.get_per_tensor_param()[0])) == ["m.experts.gate_up_proj"]


def test_odd_stack_is_refused():
    with pytest.raises(ValueError, match=r"odd number of rows"):
        list(verl_repairs.split_stacked_experts([("m.experts.gate_up_proj", Stack(2, 5, 4))]))


MODEL_BRIDGE = """
    class MegatronModelBridge:
        def build_conversion_tasks(self, hf_pretrained, megatron_model):
            return self.tasks
"""


def task(weight, hf_param, **mapping):
    return SimpleNamespace(param_weight=weight, mapping=SimpleNamespace(hf_param=hf_param, **mapping))


def test_ownerless_tasks_are_dropped_on_every_rank_alike(stubs):
    """SkyRL#2042: the decision rests on the checkpoint's keys, so owner and other ranks drop the same tasks."""
    stubs.dist("megatron-bridge", "0.6.2", models__conversion__model_bridge=MODEL_BRIDGE)
    bridge = stubs.load("megatron.bridge.models.conversion.model_bridge").MegatronModelBridge()
    checkpoint = SimpleNamespace(
        state=SimpleNamespace(source=SimpleNamespace(get_all_keys=lambda: ["q", "k", "v", "norm"]))
    )
    qkv = {"q": "q", "k": "k", "v": "v"}
    mine, lost, renamed = task("weight", qkv), task(None, "absent"), task(None, "absent", allow_hf_name_mismatch=True)
    other, half = task(None, "norm"), task(None, {"q": "q", "k": "gone"})
    bridge.tasks = [mine, lost, None, renamed, other, half]
    owner = bridge.build_conversion_tasks(checkpoint, ["model"])
    assert owner == [mine, None, renamed, other]
    bridge.tasks = [task(None, qkv), lost, None, renamed, task("weight", "norm"), half]
    assert [t is None for t in bridge.build_conversion_tasks(checkpoint, ["model"])] == [t is None for t in owner]


def test_plans_without_ownerless_tasks_are_the_same_object(stubs):
    stubs.dist("megatron-bridge", "0.6.2", models__conversion__model_bridge=MODEL_BRIDGE)
    bridge = stubs.load("megatron.bridge.models.conversion.model_bridge").MegatronModelBridge()
    bridge.tasks = [task(None, "absent")]
    assert bridge.build_conversion_tasks(SimpleNamespace(), []) is bridge.tasks  # a configuration, no checkpoint
    bridge.tasks = [task("weight", "q")]
    checkpoint = SimpleNamespace(state=SimpleNamespace(source=SimpleNamespace(get_all_keys=lambda: ["q"])))
    assert bridge.build_conversion_tasks(checkpoint, []) is bridge.tasks


ROPE = """
    class Qwen3VLMultimodalRotaryEmbedding:
        def forward(self, position_ids, mrope_section{more}):
            return position_ids
"""


@pytest.fixture
def rope(stubs):
    def make(more="", size=1):
        stubs.dist(
            "megatron-core",
            "0.16.1",
            parallel_state=f"""
            def is_initialized(): return True
            def get_context_parallel_world_size(): return {size}
        """,
        )
        stubs.dist("mbridge", "0.15.1", models__qwen3_vl__rope_utils=ROPE.format(more=more))
        return stubs.load("mbridge.models.qwen3_vl.rope_utils").Qwen3VLMultimodalRotaryEmbedding().forward

    return make


def test_packing_arguments_are_dropped_where_they_do_not_matter(rope):
    """verl#4763."""
    forward = rope()
    assert forward("ids", "section", packed_seq_params="packed") == "ids"
    assert forward("ids", "section", cp_group=None) == "ids"
    with pytest.raises(TypeError, match="nonsense"):
        forward("ids", "section", nonsense=1)


def test_packing_arguments_are_refused_as_before_under_context_parallelism(rope):
    with pytest.raises(TypeError, match="packed_seq_params"):
        rope(size=2)("ids", "section", packed_seq_params="packed")


@pytest.mark.parametrize("more", [", packed_seq_params=None, cp_group=None", ", packed_seq_params=None, **kwargs"])
def test_newer_mbridge_is_untouched(stubs, rope, more):
    rope(more=more)
    assert stubs.outcome("mbridge_qwen3_vl_packed_rotary") == "not-needed"


WORKER = """
    from vllm.v1.worker.worker_base import WorkerWrapperBase

    def make():
        return WorkerWrapperBase(vllm_config="config")
"""


@pytest.mark.parametrize(
    ("verl", "vllm", "signature", "outcome"),
    [
        ("0.7.0", "0.12.0", "vllm_config, rpc_rank=0, global_rank=None", "not-needed"),
        ("0.7.0", "0.17.1", "rpc_rank=0, global_rank=None", "applied"),
        ("0.7.1", "0.17.1", "vllm_config=None, rpc_rank=0", "not-needed"),
    ],
)
def test_worker_wrapper(stubs, verl, vllm, signature, outcome):
    """verl#4915."""
    stubs.dist(
        "vllm", vllm, v1__worker__worker_base=f"class WorkerWrapperBase:\n    def __init__(self, {signature}): ...\n"
    )
    stubs.dist("verl", verl, workers__rollout__vllm_rollout__vllm_rollout=WORKER)
    module = stubs.load("verl.workers.rollout.vllm_rollout.vllm_rollout")
    assert type(module.make()).__name__ == "WorkerWrapperBase"
    assert stubs.outcome("verl_0_7_0_worker_wrapper") in (
        outcome,
        "out-of-range" if outcome == "not-needed" else outcome,
    )


@pytest.mark.parametrize(
    ("vllm", "signature", "outcome"),
    [
        ("0.12.0", "args", "not-needed"),
        ("0.16.0", "args, supported_tasks", "applied"),
        ("0.17.1", "args, supported_tasks=None", "not-needed"),
    ],
)
def test_build_app(stubs, vllm, signature, outcome):
    """verl#5093; vLLM 0.17 falls back on ("generate",)."""
    source = f"def build_app({signature}):\n    return locals()\n"
    stubs.dist("vllm", vllm, entrypoints__openai__api_server=source)
    server = "from vllm.entrypoints.openai.api_server import build_app\n"
    stubs.dist("verl", "0.7.0", workers__rollout__vllm_rollout__vllm_async_server=server)
    built = stubs.load("verl.workers.rollout.vllm_rollout.vllm_async_server").build_app("args")
    assert built["args"] == "args"
    if outcome == "applied":
        assert built["supported_tasks"] == ("generate",)
    assert stubs.outcome("verl_0_7_0_build_app") in (outcome, "untested" if outcome == "applied" else outcome)


OLD_CORE = """
    _MPU_PIPELINE_MODEL_PARALLEL_RANK = None
    def get_pipeline_model_parallel_rank(): return _MPU_PIPELINE_MODEL_PARALLEL_RANK or 0
    def get_virtual_pipeline_model_parallel_rank(): return None
    def set_pipeline_model_parallel_rank(rank):
        global _MPU_PIPELINE_MODEL_PARALLEL_RANK
        _MPU_PIPELINE_MODEL_PARALLEL_RANK = rank
"""
OLD_OFFSET = """
    from megatron.core import parallel_state
    def get_transformer_layer_offset(config):
        return config * parallel_state.get_pipeline_model_parallel_rank()
"""


def test_layer_offset_on_core_0_12(stubs):
    """verl#5727, where it was reported; core 0.14 and newer are in tests/core as real wheels."""
    stubs.dist("megatron-core", "0.12.1", parallel_state=OLD_CORE, transformer__transformer_layer=OLD_OFFSET)
    source = "from megatron.core.transformer.transformer_layer import get_transformer_layer_offset\n"
    stubs.dist("verl", "0.7.1", utils__megatron__router_replay_utils=source)
    offset = stubs.load("verl.utils.megatron.router_replay_utils").get_transformer_layer_offset
    assert offset(4, vp_stage=None, pp_rank=1) == 4
    assert offset(4, vp_stage=0, pp_rank=0) == 0
    assert stubs.load("megatron.core.parallel_state").get_pipeline_model_parallel_rank() == 0
    with pytest.raises(ValueError, match="virtual pipeline stage 1"):
        offset(4, vp_stage=1, pp_rank=0)


ENGINE_WORKERS = """
    class Dispatch:
        ONE_TO_ALL = "one to all"

    def register(dispatch_mode):
        def mark(function):
            function.dispatch_mode = dispatch_mode
            return function
        return mark

    class ActorRolloutRefWorker:
        def save_checkpoint(self, local_path): ...
"""


@pytest.mark.parametrize("verl", ["0.8.0", "0.9.1"])
def test_trainer_finds_the_finalizer(stubs, monkeypatch, verl):
    """verl's trainer: `if hasattr(actor_rollout_wg, "async_calls_finalize_fn_exec")`, dispatched to all ranks."""
    from verl_compat.shims import async_save

    stubs.dist("verl", verl, workers__engine_workers=ENGINE_WORKERS)
    stubs.dist("megatron-core", "0.16.1")
    module = stubs.load("verl.workers.engine_workers")
    method = module.ActorRolloutRefWorker.async_calls_finalize_fn_exec
    assert method.dispatch_mode == module.Dispatch.ONE_TO_ALL
    calls: list[bool] = []
    queue = SimpleNamespace(maybe_finalize_async_calls=lambda blocking: calls.append(blocking))
    monkeypatch.setattr(async_save, "kept_calls", lambda: queue)
    module.ActorRolloutRefWorker().async_calls_finalize_fn_exec()
    assert calls == []  # a worker without Megatron
    stubs.load("megatron.core")
    module.ActorRolloutRefWorker().async_calls_finalize_fn_exec(blocking=True)
    module.ActorRolloutRefWorker().async_calls_finalize_fn_exec()
    assert calls == [True, False]


def test_a_worker_that_finalizes_by_itself_is_left_alone(stubs):
    """verl 0.7's worker has the method; so may a later release."""
    source = ENGINE_WORKERS + "        def async_calls_finalize_fn_exec(self, blocking=False): return 'own'\n"
    stubs.dist("megatron-core", "0.16.1")
    stubs.dist("verl", "0.9.1", workers__engine_workers=source)
    assert stubs.load("verl.workers.engine_workers").ActorRolloutRefWorker().async_calls_finalize_fn_exec() == "own"
    assert stubs.outcome("verl_ge_0_8_async_save_finalize") == "not-needed"
