"""bridge_plan_cache on a real Bridge, one process: what is not about ranks (for those, tests/distributed)."""

from __future__ import annotations

import copy
import gc
import inspect
import io
import os
import pickle
import subprocess
import sys
import weakref
from pathlib import Path
from types import GeneratorType

import pytest

from support import tiny
from support.plan import Layout, assert_equal, bridge_alone, build, fresh, outcome, peft_hook, stream, train_step
from support.versions import BRIDGE
from verl_compat import plan_cache

pytestmark = pytest.mark.bridge


@pytest.fixture(autouse=True)
def clean():
    plan_cache.clear()
    plan_cache.reset_stats()


@pytest.fixture
def built(dense_checkpoint):
    return build(Layout("dense", 1), dense_checkpoint)


def check(bridge, model, mode="merged", **kwargs):
    actual = outcome(lambda: stream(bridge, model, mode, **kwargs))
    assert_equal(actual, fresh(bridge, model, mode, **kwargs), mode)
    return actual


def marks(function):
    """The adapters that wrap a function, outermost first."""
    found = []
    while hasattr(function, "__verl_compat__"):
        found.append(function.__verl_compat__)
        function = function.__wrapped__
    return found


def test_adapter_is_applied():
    from megatron.bridge import AutoBridge

    assert AutoBridge.export_hf_weights.__verl_compat__ == "bridge_plan_cache"
    assert "bridge_plan_cache" in marks(AutoBridge.export_adapter_weights)
    if hasattr(AutoBridge, "export_hf_weights_quant"):
        assert AutoBridge.export_hf_weights_quant.__verl_compat__ == "bridge_ge_0_5_plan_cache_quant_export"
    assert list(inspect.signature(AutoBridge.export_hf_weights).parameters)[:3] == ["self", "model", "cpu"]


def test_equal_to_bridge_alone_and_planned_once(built):
    bridge, model = built
    for step in range(4):
        train_step(model, step)
        items, error = check(bridge, model)
        assert error is None
        assert len(items) > 40
    stats = plan_cache.stats()
    assert (stats.misses, stats.hits, stats.votes, stats.inventories_skipped) == (1, 3, 0, 1)


def test_moe(moe_checkpoint):
    bridge, model = build(Layout("moe", 1, kind="qwen3_moe"), moe_checkpoint)
    for step in range(3):
        train_step(model, step)
        check(bridge, model)


@pytest.mark.parametrize("peft", ["lora", "canonical_lora", "dora"])
def test_adapters(dense_checkpoint, peft):
    bridge, model = build(Layout(peft, 1, peft=peft), dense_checkpoint)
    for step in range(3):
        train_step(model, step)
        for mode in ("merged", "unmerged", "adapters"):
            items, error = check(bridge, model, mode)
            assert items or error
    assert plan_cache.stats().inventories_skipped == 0


def test_tied_embeddings(tmp_path):
    path = tiny.write_tiny_checkpoint(tmp_path, "qwen3", tie_word_embeddings=True)
    bridge, model = build(Layout("tied", 1), path)
    for _ in range(3):
        names = [name for name, _ in check(bridge, model)[0]]
        assert "model.embed_tokens.weight" in names
    assert plan_cache.stats().hits == 2


def test_single_module_is_a_list_of_one(built):
    bridge, model = built
    for _ in range(2):
        check(bridge, model)
        _, error = check(bridge, model[0])
    assert plan_cache.stats().hits == (3 if error is None else 1)  # Bridge 0.3 takes a list only


def test_lazy_generator_with_bridges_eager_errors(built):
    bridge, model = built
    started = bridge.export_hf_weights(model, show_progress=False)
    assert isinstance(started, GeneratorType)
    assert plan_cache.stats().misses == 0
    train_step(model, 5)
    assert_equal((list(started), None), fresh(bridge, model, "merged"), "lazy")
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        bridge.export_hf_weights(model, colour="blue")


def test_values_change_but_objects_stay(built):
    """Optimizer steps, param.data and storage moves hit; a replaced buffer or parameter does not."""
    import torch

    bridge, model = built
    check(bridge, model)
    weight = model[0].decoder.layers[1].mlp.linear_fc2.weight
    weight.data = torch.randn_like(weight)
    check(bridge, model)
    saved = weight.data.clone()
    weight.untyped_storage().resize_(0)
    weight.data = saved * 2
    check(bridge, model)
    assert plan_cache.stats().hits == 2
    model[0].decoder.layers[1].mlp.linear_fc2.weight = torch.nn.Parameter(torch.randn_like(weight))
    check(bridge, model)
    assert plan_cache.stats().reasons["modules or parameters"] == 1


def test_replaced_router_bias_buffer_is_exported(moe_checkpoint):
    """Module.to() that converts gives buffers a new identity; a hand-kept list exports the old one for ever."""
    bridge, model = build(Layout("moe", 1, kind="qwen3_moe"), moe_checkpoint)
    _, error = check(bridge, model)
    for dtype in ("double", "float"):
        getattr(model[0], dtype)()
        check(bridge, model)
    if error is not None:
        pytest.skip(f"Bridge {BRIDGE} cannot export SequentialMLP: {error}")
    assert plan_cache.stats().reasons.get("dtypes", 0) + plan_cache.stats().reasons.get("modules or parameters", 0) >= 2


def test_callers_tasks_are_left_alone(built):
    bridge, model = built
    tasks = bridge.get_conversion_tasks(model)
    half = tasks[: len(tasks) // 2]
    for _ in range(2):
        items = list(bridge.export_hf_weights(model, show_progress=False, conversion_tasks=half))
        assert 0 < len(items) < 40
    assert plan_cache.stats().exempt == {"caller's tasks": 2}
    assert plan_cache.stats().entries == 0


def test_weight_dtype(built):
    import torch

    bridge, model = built
    if "weight_dtype" not in inspect.signature(bridge.export_hf_weights).parameters:
        pytest.skip(f"Bridge {BRIDGE} has no weight_dtype (0.6 and newer have)")
    for dtype in (torch.bfloat16, None, torch.float16, torch.bfloat16, None):
        items, _ = check(bridge, model, weight_dtype=dtype)
        assert {tensor.dtype for _, tensor in items} == {dtype or torch.float32}
    assert plan_cache.stats().misses == 3
    tasks = bridge.get_conversion_tasks(model)
    check_error = outcome(lambda: stream(bridge, model, "merged", weight_dtype=torch.float16, conversion_tasks=tasks))
    assert check_error[1].startswith("ValueError: weight_dtype is not supported")


def test_fp8_is_exempt(built):
    bridge, model = built
    if not hasattr(bridge, "export_weight_dtype"):
        pytest.skip(f"Bridge {BRIDGE} has no export_weight_dtype (0.5 and newer have)")
    bridge.export_weight_dtype = "fp8"
    bridge._validate_fp8_export_config = lambda model: None  # it wants FP8 parameters, which need a GPU
    made = []
    tasks = bridge.get_conversion_tasks(model)
    cls = type(bridge._model_bridge)
    original = cls.build_export_fp8_tasks
    cls.build_export_fp8_tasks = lambda self, *args: made.append(1) or list(tasks)
    try:
        for _ in range(3):
            assert list(bridge.export_hf_weights(model, show_progress=False))
    finally:
        cls.build_export_fp8_tasks = original
    assert len(made) == 3, "planned by Bridge each time"
    assert plan_cache.stats().exempt == {"fp8": 3}
    assert plan_cache.stats().entries == 0


def test_modelopt_export_is_exempt(built):
    bridge, model = built
    if not hasattr(bridge, "export_hf_weights_modelopt"):
        pytest.skip(f"Bridge {BRIDGE} has no export_hf_weights_modelopt (0.6 and newer have)")
    pytest.importorskip("modelopt", reason="nvidia-modelopt is not installed")
    for _ in range(2):
        outcome(lambda: bridge.export_hf_weights_modelopt(model, show_progress=False))
    assert sum(plan_cache.stats().exempt.values()) in (0, 2)  # 0: Bridge refuses the unquantised model
    assert plan_cache.stats().entries == plan_cache.stats().hits == 0


def test_quant_export_is_exempt_and_as_before(built):
    bridge, model = built
    if not hasattr(bridge, "export_hf_weights_quant"):
        pytest.skip(f"Bridge {BRIDGE} has no export_hf_weights_quant (0.5 and newer have)")

    def quant():
        return bridge.export_hf_weights_quant(model, lambda name: False, lambda *a: a, show_progress=False)

    actual = outcome(quant)
    assert plan_cache.stats().exempt == {"quant": 1}
    assert plan_cache.stats().entries == 0
    cls = type(bridge)
    wrapped = cls.export_hf_weights_quant
    cls.export_hf_weights_quant = wrapped.__wrapped__
    try:
        assert_equal(actual, outcome(quant), "quant")  # on 0.5.x Bridge's own TypeError
    finally:
        cls.export_hf_weights_quant = wrapped


def test_quantised_parameters_are_exempt(built):
    import torch

    class Float8Tensor(torch.nn.Parameter):
        pass

    bridge, model = built
    layer = model[0].decoder.layers[0].mlp.linear_fc2
    layer.weight = Float8Tensor(layer.weight.detach().clone())
    for _ in range(2):
        check(bridge, model)
    assert plan_cache.stats().exempt == {"quantised parameters": 2}
    assert plan_cache.stats().entries == 0


def alone(name):
    """MegatronModelBridge's own method, without any of our wrappers."""
    from megatron.bridge.models.conversion.model_bridge import MegatronModelBridge

    function = getattr(MegatronModelBridge, name)
    while hasattr(function, "__verl_compat__"):
        function = function.__wrapped__
    return MegatronModelBridge, function


def add_quantizer(layer):
    """A quantizer as ModelOpt hangs it on a layer: a module with persistent buffers."""
    import torch

    quantizer = torch.nn.Module()
    quantizer.register_buffer("_amax", torch.ones(1))
    layer.weight_quantizer = quantizer


def test_quantizer_buffers_cost_nothing_on_any_path(built, tmp_path):
    """`bridge_quantizer_buffers`: export, caller's tasks, save and load, where Bridge alone ends in AttributeError."""
    bridge, model = built
    expected, _ = fresh(bridge, model, "merged")
    add_quantizer(model[0].decoder.layers[0].mlp.linear_fc1)
    owner, build = alone("build_conversion_tasks")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, "build_conversion_tasks", build)
        patch.setattr(owner, "_with_progress_tracking", alone("_with_progress_tracking")[1])
        assert fresh(bridge, model, "merged")[1].startswith("AttributeError")
    for _ in range(3):
        assert_equal(outcome(lambda: stream(bridge, model, "merged")), (expected, None), "without the buffer")
    assert plan_cache.stats().hits == 2
    tasks = bridge.get_conversion_tasks(model)
    assert None not in tasks
    given = [name for name, _ in bridge.export_hf_weights(model, cpu=True, show_progress=False, conversion_tasks=tasks)]
    assert given == [item[0] for item in expected]
    bridge.save_hf_weights(model, tmp_path / "out", show_progress=False)
    bridge.load_hf_weights(model)
    del model[0].decoder.layers[0].mlp.linear_fc1.weight_quantizer
    check(bridge, model)


def test_what_bridge_calls_an_adapter_is_its_own_affair():
    """The kind: an answer of upstream to its own callers changed by us (Bridge's own tests fail then)."""
    from megatron.bridge.models.conversion.peft_bridge import MegatronPeftBridge

    assert marks(MegatronPeftBridge._is_adapter_param_name) == []
    name = "decoder.layers.0.mlp.linear_fc1.weight_quantizer._amax"
    assert not MegatronPeftBridge._is_adapter_param_name(object.__new__(MegatronPeftBridge), name)


@pytest.mark.parametrize("path", ["cached", "caller's tasks", "save", "load"])
def test_a_weight_without_mapping_is_refused_by_name(built, tmp_path, path):
    """weight_norm renames a weight: an export without it would be incomplete, and Bridge alone raises too."""
    from torch.nn.utils.parametrizations import weight_norm

    bridge, model = built
    check(bridge, model)
    weight_norm(model[0].decoder.layers[1].mlp.linear_fc1, "weight")
    do = {
        "cached": lambda: list(stream(bridge, model, "merged")),
        "caller's tasks": lambda: list(
            bridge.export_hf_weights(
                model, cpu=True, show_progress=False, conversion_tasks=bridge.get_conversion_tasks(model)
            )
        ),
        "save": lambda: bridge.save_hf_weights(model, tmp_path / "out", show_progress=False),
        "load": lambda: bridge.load_hf_weights(model),
    }[path]
    for _ in range(2):
        with pytest.raises(AttributeError, match=r"layers\.1\.mlp\.linear_fc1\.parametrizations"):
            do()


@pytest.fixture
def swapping():
    import torch

    torch.__future__.set_swap_module_params_on_conversion(True)
    yield
    torch.__future__.set_swap_module_params_on_conversion(False)


@pytest.mark.usefixtures("swapping")
@pytest.mark.parametrize("how", ["to", "load_state_dict", "dtensor"])
def test_torch_can_swap_every_parameter_after_an_export(built, how):
    """The kind: something of ours on a tensor (a weak reference) that changes what torch can do with it."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    bridge, model = built
    check(bridge, model)
    check(bridge, model)
    (chunk,) = model
    if how == "dtensor":
        torch.__future__.set_swap_module_params_on_conversion(False)  # DTensors are always swapped
        mesh = init_device_mesh("cpu", (1,))
        for module in chunk.modules():
            for name, weight in list(module._parameters.items()):
                if weight is not None and weight.ndim == 2:
                    module._parameters[name] = torch.nn.Parameter(distribute_tensor(weight.data, mesh, [Shard(0)]))
        for _ in range(2):
            outcome(lambda: stream(bridge, model, "merged"))  # planned and, where Bridge can, exported
        chunk.to(torch.bfloat16)
        chunk.to(torch.float32)
        return
    if how == "to":
        chunk.to(torch.bfloat16)
        chunk.to(torch.float32)
    else:
        chunk.load_state_dict({name: value for name, value in chunk.state_dict().items() if value is not None})
    check(bridge, model)


def test_nothing_refers_to_a_tensor_while_a_plan_is_kept(built):
    import weakref

    bridge, model = built
    check(bridge, model)
    assert plan_cache.stats().entries == 1
    for name, weight in model[0].named_parameters():
        assert weakref.getweakrefcount(weight) == 0, name
        assert not weight._backward_hooks, name


def test_config_only_bridge_and_empty_model(built):
    import torch
    from megatron.bridge import AutoBridge

    bridge, model = built
    bare = AutoBridge.from_hf_config(bridge.hf_pretrained.config)
    for _ in range(3):
        check(bare, model)
        empty = torch.nn.Module()
        empty.config = model[0].config
        check(bridge, [empty])
        check(bridge, [])
    plain = torch.nn.Linear(2, 2)
    check(bridge, [plain])


def stop_at_the_first(items):
    for _ in items:
        raise RuntimeError("stop")


def test_bridge_and_model_are_freed(dense_checkpoint):
    for end in ("complete", "exception"):
        bridge, model = build(Layout("dense", 1, peft="lora"), dense_checkpoint)
        for mode in ("merged", "adapters"):
            check(bridge, model, mode)
            check(bridge, model, mode)
        if end == "exception":
            with pytest.raises(RuntimeError, match="stop"):
                stop_at_the_first(stream(bridge, model, "merged"))
        references = [weakref.ref(bridge), weakref.ref(model[0])]
        del bridge, model
        gc.collect()
        assert [reference() for reference in references] == [None, None], end
        assert plan_cache.stats().entries == 0


def copies(bridge, model):
    """What copying, pickling and saving give: a length, or the error (core's modules hold process groups)."""
    import torch

    def saved(thing):
        buffer = io.BytesIO()
        torch.save(thing, buffer)
        return len(buffer.getvalue())

    results = []
    for thing in (bridge, bridge.hf_pretrained.config, model[0], model[0].state_dict(), model[0].config):
        for act in (copy.deepcopy, pickle.dumps, saved):
            try:
                result = act(thing)
                results.append(len(result) if isinstance(result, bytes) else type(result).__name__)
            except Exception as error:
                results.append(f"{type(error).__name__}: {error}")
    return results


def test_copies_and_pickles_are_as_before(built):
    bridge, model = built
    with bridge_alone():
        list(stream(bridge, model, "merged"))  # Bridge itself sets config on modules

    def attributes():
        return set(vars(bridge)), [set(vars(module)) for module in model[0].modules()]

    before, copied = attributes(), copies(bridge, model)
    list(stream(bridge, model, "merged"))
    list(stream(bridge, model, "merged"))
    assert attributes() == before
    assert copies(bridge, model) == copied
    check(copy.deepcopy(bridge), model)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_fork_is_safe(built):
    bridge, model = built
    check(bridge, model)
    pid = os.fork()
    if pid == 0:
        fine = plan_cache.stats().entries == 0
        os._exit(0 if fine else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    check(bridge, model)
    assert plan_cache.stats().hits == 1


class TestWrap:
    def test_transparent(self, built):
        from megatron.bridge import AutoBridge

        bridge, model = built
        proxy = plan_cache.wrap(bridge)
        assert isinstance(proxy, AutoBridge)
        assert proxy.hf_pretrained is bridge.hf_pretrained
        assert plan_cache.wrap(proxy) is proxy
        with bridge_alone():  # as with VERL_COMPAT_DISABLE=bridge_plan_cache
            for step in range(3):
                train_step(model, step)
                for mode in ("merged", "adapters"):
                    assert_equal(
                        outcome(lambda mode=mode: stream(proxy, model, mode)), fresh(bridge, model, mode), mode
                    )
        assert plan_cache.stats().hits == 4

    def test_with_the_adapter_on_it_changes_nothing(self, built):
        bridge, model = built
        proxy = plan_cache.wrap(bridge)
        for _ in range(2):
            list(stream(proxy, model, "merged"))
            list(stream(bridge, model, "merged"))
        assert (plan_cache.stats().misses, plan_cache.stats().hits) == (1, 3)

    def test_copies(self, built):
        bridge, _ = built
        proxy = plan_cache.wrap(bridge)
        assert type(copy.deepcopy(proxy)) is type(copy.copy(proxy)) is type(proxy)

    @pytest.mark.parametrize("wrong", [None, {}, "qwen3", dict], ids=repr)
    def test_bad_input(self, wrong):
        with pytest.raises(TypeError, match=r"takes a megatron.bridge AutoBridge, got (a|the class) .*from_hf_pretr"):
            plan_cache.wrap(wrong)

    def test_model_given_instead_of_bridge(self, built):
        with pytest.raises(TypeError, match="got a megatron.core.models.gpt.gpt_model.GPTModel"):
            plan_cache.wrap(built[1][0])


def test_disable_by_environment():
    """VERL_COMPAT_DISABLE=bridge_plan_cache leaves Bridge's own methods in place."""
    code = (
        "from support import enable_stubs; enable_stubs()\n"
        "import verl_compat.auto\nfrom megatron.bridge import AutoBridge\n"
        "assert not hasattr(AutoBridge.export_hf_weights, '__verl_compat__')\n"
    )
    tests = str(Path(__file__).parents[1])
    path = os.pathsep.join([tests, *filter(None, [os.environ.get("PYTHONPATH")]), *sys.path])
    environment = {**os.environ, "VERL_COMPAT_DISABLE": "bridge_plan_cache", "PYTHONPATH": path}
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], env=environment, check=True, timeout=180)


def test_adapter_added_to_a_planned_model(built):
    bridge, model = built
    check(bridge, model)
    peft_hook("lora")(model)
    train_step(model, 3)
    for mode in ("merged", "unmerged", "adapters"):
        check(bridge, model, mode)
        check(bridge, model, mode)
    assert plan_cache.stats().hits == 3
