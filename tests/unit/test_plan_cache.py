"""The plan cache on a made-up Bridge: no torch, no upstream.

Covers what does not depend on a release: bridge_plan_cache, bridge_ge_0_5_plan_cache_quant_export and
verl_0_9_export_tasks are tested on the real ones in tests/contract and tests/distributed.
"""

from __future__ import annotations

import gc
import itertools
import os
import weakref
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from verl_compat.shims import plan_cache, plan_consensus, plan_fingerprint, plan_state, plan_tasks
from verl_compat.shims.plan_store import MAX_PLANS_PER_MODEL, STORE
from verl_compat.shims.plan_verl import RoutedTasks, export_tasks


class Weight:
    """Stands for a parameter: what a fingerprint reads of one."""

    def __init__(self, value: float, shape: tuple[int, ...] = (2,), dtype: str = "fp32") -> None:
        self.value, self.shape, self.dtype = value, shape, dtype


Weight.__module__, Weight.__name__ = "torch.nn.parameter", "Parameter"


class Module:
    """Stands for a torch.nn.Module."""

    def __init__(self, **content: Any) -> None:
        self._modules = {name: value for name, value in content.items() if isinstance(value, Module)}
        self._parameters = {name: value for name, value in content.items() if isinstance(value, Weight)}
        self._buffers: dict[str, Any] = {}
        self._non_persistent_buffers_set: set[str] = set()
        for name in content.keys() - self._modules.keys() - self._parameters.keys():
            setattr(self, name, content[name])


@dataclass(frozen=True)
class Task:
    global_param_name: str
    mapping: Any
    megatron_module: Any = None
    param_weight: Any = None


class Bridge:
    """Stands for a MegatronModelBridge: made for one export, asks itself for its plan."""

    planned = inventories = 0
    unmapped: tuple[str, ...] = ()
    fail_at: int | None = None

    def build_conversion_tasks(self, pretrained: Any, model: list[Module]) -> list[Task | None]:
        Bridge.planned += 1
        self.pretrained_seen = pretrained
        layers = [(f"{n}.{name}", layer) for n, chunk in enumerate(model) for name, layer in chunk._modules.items()]
        self._cached_param_names = [name for name, layer in layers for _ in layer._parameters]
        return [
            None if name in Bridge.unmapped else Task(name, SimpleNamespace(), layer, weight)
            for name, layer in layers
            for weight in layer._parameters.values()
        ]

    def build_adapter_conversion_tasks(self, model: list[Module], *_args: Any) -> dict[str, list[Any]]:
        Bridge.inventories += 1
        return defaultdict(list)

    def stream(self, model: list[Module], pretrained: Any, merge: bool) -> Iterator[tuple[str, float]]:
        tasks = self.build_conversion_tasks(pretrained, model)
        if merge:
            self.build_adapter_conversion_tasks(model)
        for number, task in enumerate(tasks):
            if number == Bridge.fail_at:
                raise ValueError("out of memory")
            yield task.global_param_name, task.param_weight.value  # type: ignore[union-attr]


class Auto:
    """Stands for AutoBridge."""

    export_weight_dtype: str | None = None

    def __init__(self) -> None:
        self.hf_pretrained = SimpleNamespace(config=SimpleNamespace(num_hidden_layers=2))

    def export_hf_weights(
        self, model: list[Module], cpu: bool = False, show_progress: bool = True, conversion_tasks: Any = None,
        merge_adapter_weights: bool = True,
    ) -> Any:  # fmt: skip
        if model == "bad":
            raise TypeError("bad model")
        if conversion_tasks is not None:
            return (("given", task) for task in conversion_tasks)
        return Bridge().stream(model, self.hf_pretrained, merge_adapter_weights)


def export(bridge: Auto, *args: Any, **kwargs: Any) -> Any:
    return plan_cache.export_hf_weights(Auto.export_hf_weights, bridge, *args, **kwargs)


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    Bridge.planned = Bridge.inventories = 0
    Bridge.unmapped, Bridge.fail_at = (), None
    plan_cache.clear()
    plan_cache.reset_stats()
    yield
    plan_cache.clear()


@pytest.fixture
def bridge() -> Auto:
    return Auto()


@pytest.fixture
def model() -> list[Module]:
    config = SimpleNamespace(hidden_size=4, loss_scale=1.5, hook=print)
    layers = {f"layer{n}": Module(weight=Weight(n), config=config, layer_number=n) for n in range(3)}
    return [Module(**layers, config=config)]


def reasons() -> dict[str, int]:
    return plan_cache.stats().reasons


def test_planned_once_and_equal(bridge: Auto, model: list[Module]) -> None:
    for step in range(4):
        model[0]._modules["layer1"]._parameters["weight"].value = step
        assert list(export(bridge, model)) == [("0.layer0", 0), ("0.layer1", step), ("0.layer2", 2)]
    assert Bridge.planned == 1
    stats = plan_cache.stats()
    assert (stats.hits, stats.misses, stats.entries, stats.votes) == (3, 1, 1, 0)


def test_nothing_runs_before_the_first_item(bridge: Auto, model: list[Module]) -> None:
    started = export(bridge, model)
    assert Bridge.planned == 0
    assert plan_cache.stats().misses == 0
    model[0]._modules["layer0"]._parameters["weight"].value = 9
    assert next(started) == ("0.layer0", 9)
    assert Bridge.planned == 1


def test_argument_errors_come_at_once_and_are_upstreams_own(bridge: Auto, model: list[Module]) -> None:
    with pytest.raises(TypeError, match="bad model"):
        export(bridge, "bad")
    with pytest.raises(TypeError, match="unexpected keyword"):
        export(bridge, model, colour="blue")


def test_state_that_planning_leaves_on_the_bridge_object_is_there_again(bridge: Auto, model: list[Module]) -> None:
    for _ in range(2):
        inner = Bridge()
        started = plan_cache.export_hf_weights(lambda *_, inner=inner: inner.stream(model, "hf", False), bridge, model)
        list(started)
        assert inner.pretrained_seen == "hf"
        assert "build_conversion_tasks" not in vars(inner)
    assert Bridge.planned == 1


def replace_weight(model: list[Module]) -> None:
    model[0]._modules["layer1"]._parameters["weight"] = Weight(1)


def replace_module(model: list[Module]) -> None:
    old = model[0]._modules["layer1"]
    model[0]._modules["layer1"] = Module(weight=old._parameters["weight"], config=old.config, layer_number=1)  # type: ignore[attr-defined]


def rename(model: list[Module]) -> None:
    model[0]._modules = {name.replace("2", "3"): layer for name, layer in model[0]._modules.items()}


def swap(model: list[Module]) -> None:
    layers = model[0]._modules
    layers["layer0"], layers["layer1"] = layers["layer1"], layers["layer0"]


def move_child(model: list[Module]) -> None:
    first, second = (model[0]._modules[name] for name in ("layer0", "layer1"))
    first._parameters["bias"] = second._parameters.pop("weight")


def replace_config(model: list[Module]) -> None:
    config = SimpleNamespace(**vars(model[0].config))  # type: ignore[attr-defined]
    for module in (model[0], *model[0]._modules.values()):
        module.config = config  # type: ignore[attr-defined]


CHANGES = {
    "parameter replaced": (replace_weight, "modules or parameters"),
    "module replaced": (replace_module, "modules or parameters"),
    "module renamed": (rename, "structure"),
    "modules swapped": (swap, "modules or parameters"),
    "parameter moved to another module": (move_child, "structure"),
    "parameter added": (lambda m: m[0]._parameters.update(bias=Weight(0)), "structure"),
    "shape": (lambda m: setattr(m[0]._modules["layer0"]._parameters["weight"], "shape", (3,)), "shapes"),
    "dtype": (lambda m: setattr(m[0]._modules["layer0"]._parameters["weight"], "dtype", "bf16"), "dtypes"),
    "class": (
        lambda m: setattr(m[0]._modules["layer0"], "__class__", type("Q", (Module,), {})),
        "module classes",
    ),
    "configuration field": (lambda m: setattr(m[0].config, "hidden_size", 8), "configuration"),
    "configuration object": (replace_config, "configuration objects"),
    "adapter": (lambda m: m[0]._modules.update(adapter=Module(alpha=1)), "structure"),
    "layer number": (lambda m: setattr(m[0]._modules["layer0"], "layer_number", 7), "structure"),
}


@pytest.mark.parametrize(("change", "reason"), CHANGES.values(), ids=CHANGES.keys())
def test_any_structural_change_plans_anew(bridge: Auto, model: list[Module], change: Any, reason: str) -> None:
    list(export(bridge, model))
    change(model)
    gc.collect()
    before = Bridge.planned
    list(export(bridge, model))
    assert Bridge.planned == before + 1
    assert reasons() == {"first export": 1, reason: 1}
    list(export(bridge, model))
    assert plan_cache.stats().hits == 1


def test_what_is_no_structure_still_hits(bridge: Auto, model: list[Module]) -> None:
    list(export(bridge, model))
    model[0].config.loss_scale = 2.5  # type: ignore[attr-defined]
    model[0].config.hook = len  # type: ignore[attr-defined]
    model[0]._modules["layer0"]._parameters["weight"].value = 5
    assert next(iter(export(bridge, model))) == ("0.layer0", 5)
    assert plan_cache.stats().hits == 1


def test_freed_object_at_the_same_address_is_no_hit(model: list[Module]) -> None:
    """Identities alone would call a new module at a freed one's address the old one."""
    taken = plan_fingerprint.take(model, None, ())
    assert plan_fingerprint.difference(taken, model, None, ()) is None
    old = model[0]._modules["layer1"]
    model[0]._modules["layer1"] = Module(weight=Weight(1), config=model[0].config, layer_number=1)
    del old
    gc.collect()
    later = plan_fingerprint.take(model, None, ())
    for name in ("blocks", "modules"):  # as if reused
        setattr(taken, name, getattr(later, name))
    assert plan_fingerprint.difference(taken, model, None, ()) == "modules or parameters"


def test_shared_modules_and_cycles_end(model: list[Module]) -> None:
    model[0]._modules["again"] = model[0]._modules["layer0"]
    model[0]._modules["layer0"]._modules["parent"] = model[0]
    assert len(plan_state.walk(model).modules) == 4


def test_other_hugging_face_model_or_chunks(bridge: Auto, model: list[Module]) -> None:
    list(export(bridge, model))
    bridge.hf_pretrained = SimpleNamespace(config=SimpleNamespace(num_hidden_layers=2))
    list(export(bridge, model))
    bridge.hf_pretrained.config.num_hidden_layers = 3
    list(export(bridge, model))
    list(export(bridge, [*model, Module()]))
    assert Bridge.planned == 4
    assert reasons() == {
        "first export": 1, "Hugging Face model": 2, "model chunks": 1,
    }  # fmt: skip


def test_modes_have_plans_of_their_own(bridge: Auto, model: list[Module]) -> None:
    for _ in range(2):
        list(export(bridge, model))
        list(export(bridge, model, merge_adapter_weights=False))
        list(export(bridge, model, False, False, None, False))  # the same by position
    assert Bridge.planned == 2
    assert plan_cache.stats().entries == 2


def test_inventory_only_with_adapters(bridge: Auto, model: list[Module]) -> None:
    list(export(bridge, model))
    assert Bridge.inventories == 0
    assert plan_cache.stats().inventories_skipped == 1
    model[0]._modules["layer0"]._modules["adapter"] = Module(alpha=1, dim=2)
    list(export(bridge, model))
    assert Bridge.inventories == 1
    list(export(bridge, model))
    assert Bridge.inventories == 1
    model[0]._modules["layer0"]._modules["adapter"].alpha = 3  # type: ignore[attr-defined]
    list(export(bridge, model))
    assert Bridge.inventories == 2
    assert reasons()["adapters"] == 1


def test_abandoned_exports_keep_no_plan(bridge: Auto, model: list[Module]) -> None:
    started = export(bridge, model)
    next(started)
    started.close()
    assert plan_cache.stats().entries == 0
    list(export(bridge, model))
    list(itertools.islice(export(bridge, model), 2))  # a hit, abandoned
    list(export(bridge, model))
    assert Bridge.planned == 3
    assert reasons()["unfinished export"] == 2
    assert list(export(bridge, model))
    assert plan_cache.stats().hits == 2


def test_suspended_export_keeps_its_plan_to_itself(bridge: Auto, model: list[Module]) -> None:
    list(export(bridge, model))
    suspended = export(bridge, model)
    next(suspended)
    list(export(bridge, model))
    assert Bridge.planned == 2
    assert reasons()["unfinished export"] == 1
    assert len(list(suspended)) == 2


def test_parameter_moved_under_the_same_name(bridge: Auto, model: list[Module]) -> None:
    """Names and identities are the same in the same order; only the owner differs."""
    first, second = (model[0]._modules[name] for name in ("layer0", "layer1"))
    second._parameters.clear()
    list(export(bridge, model))
    second._parameters.update(first._parameters)
    first._parameters.clear()
    list(export(bridge, model))
    assert reasons() == {"first export": 1, "structure": 1}


def test_error_inside_the_stream_is_upstreams_own_and_keeps_no_plan(bridge: Auto, model: list[Module]) -> None:
    Bridge.fail_at = 1
    with pytest.raises(ValueError, match="out of memory"):
        list(export(bridge, model))
    Bridge.fail_at = None
    assert len(list(export(bridge, model))) == 3
    assert Bridge.planned == 2


def test_two_exports_side_by_side(bridge: Auto, model: list[Module]) -> None:
    list(export(bridge, model))
    pairs = zip(export(bridge, model), export(bridge, model), strict=True)
    assert all(left == right for left, right in pairs)
    assert list(export(bridge, model))
    assert plan_cache.stats().hits >= 1


def test_an_unmapped_parameter_is_bridges_to_refuse_and_nothing_is_kept(bridge: Auto, model: list[Module]) -> None:
    """The kind: an incomplete export in place of an error."""
    Bridge.unmapped = ("0.layer1",)
    for _ in range(3):
        with pytest.raises(AttributeError, match="global_param_name"):
            list(export(bridge, model))
    assert plan_cache.stats().entries == 0


def test_exempt_modes_are_left_alone_and_counted(bridge: Auto, model: list[Module]) -> None:
    tasks = ["a", "b"]
    assert list(export(bridge, model, conversion_tasks=tasks)) == [("given", "a"), ("given", "b")]
    hooked = [SimpleNamespace(export_hook=print)]
    assert len(list(export(bridge, model, False, False, hooked))) == 1
    bridge.export_weight_dtype = "fp8"
    list(export(bridge, model))
    assert plan_cache.count_quant_export(lambda b: iter("x"), bridge) is not None
    bridge.export_weight_dtype = None
    with plan_cache.disabled():
        list(export(bridge, model))
    model[0]._modules["layer0"]._parameters["weight"] = type("Float8Tensor", (Weight,), {"__module__": "te"})(1)
    list(export(bridge, model))
    assert plan_cache.stats().entries == 0
    assert Bridge.planned == 3
    assert plan_cache.stats().exempt == {
        "caller's tasks": 1, "modelopt": 1, "fp8": 1, "quant": 1, "disabled": 1, "quantised parameters": 1,
    }  # fmt: skip
    assert set(plan_cache.stats().exempt) <= set(plan_cache.EXEMPT)


def test_streams_that_are_no_bridge_generators_pass_through(bridge: Auto, model: list[Module]) -> None:
    items = iter([1, 2])
    assert plan_cache.export_hf_weights(lambda *_: items, bridge, model) is items
    assert plan_cache.stats().exempt == {"unknown stream": 1}


def test_disabled_keeps_plans(bridge: Auto, model: list[Module]) -> None:
    list(export(bridge, model))
    with plan_cache.disabled():
        outside = export(bridge, model)
    assert list(outside)
    assert Bridge.planned == 2
    list(export(bridge, model))
    assert plan_cache.stats().hits == 1


def test_dropping_model_or_bridge_drops_its_plans(bridge: Auto, model: list[Module]) -> None:
    list(export(bridge, model))
    reference = weakref.ref(model[0])
    model.clear()
    assert reference() is None, "no garbage collection should be needed"
    assert len(STORE) == 0


def test_dropping_the_bridge(model: list[Module]) -> None:
    bridge = Auto()
    list(export(bridge, model))
    reference = weakref.ref(bridge)
    del bridge
    assert reference() is None
    assert len(STORE) == 0


def test_number_of_plans_is_bounded(bridge: Auto, model: list[Module]) -> None:
    for n in range(3 * MAX_PLANS_PER_MODEL):
        original = lambda *_: Bridge().stream(model, "hf", False)  # noqa: E731
        list(plan_cache.export_adapter_weights(original, bridge, model, True, True, [f"prefix{n}"]))
    assert plan_cache.stats().entries == MAX_PLANS_PER_MODEL


def test_prefixes_given_as_an_iterator_reach_upstream(bridge: Auto, model: list[Module]) -> None:
    seen: list[Any] = []

    def original(_bridge: Any, _model: Any, **kwargs: Any) -> Any:
        seen.append(tuple(kwargs["exclude_adapter_base_prefixes"]))
        return Bridge().stream(model, "hf", False)

    list(plan_cache.export_adapter_weights(original, bridge, model, exclude_adapter_base_prefixes=iter("ab")))
    assert seen == [("a", "b")]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_forked_child_plans_for_itself(bridge: Auto, model: list[Module]) -> None:
    list(export(bridge, model))
    STORE._lock.acquire()  # as if another thread held it at the time of the fork
    pid = os.fork()
    if pid == 0:
        fine = len(STORE) == 0 and len(list(export(bridge, model))) == 3 and Bridge.planned == 2
        os._exit(0 if fine else 1)
    STORE._lock.release()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert len(STORE) == 1


def test_configuration_broadcast_gets_a_key_once() -> None:
    calls: list[Any] = []

    class ChunkedMapping:
        def broadcast_obj_from_pp_rank(self, obj: Any, cache_key: str | None = None) -> Any:
            calls.append(cache_key)
            return obj

    class MambaConv1dMapping(ChunkedMapping):
        pass

    mamba = MambaConv1dMapping()
    plain = type("Plain", (), {"broadcast_obj_from_pp_rank": ChunkedMapping.broadcast_obj_from_pp_rank})()
    plan_tasks.key_config_broadcasts([SimpleNamespace(mapping=mamba), SimpleNamespace(mapping=plain)])
    mamba.broadcast_obj_from_pp_rank("config")
    mamba.broadcast_obj_from_pp_rank("config", "own key")
    plain.broadcast_obj_from_pp_rank("config")
    assert calls[1:] == ["own key", None]
    assert calls[0]
    reference = weakref.ref(mamba)
    del mamba
    assert reference() is None, "the key must not keep its mapping alive"


def test_no_vote_in_a_world_of_one() -> None:
    ballot = plan_consensus.Ballot(hit=True, no_adapters=True, mode=7)
    assert plan_consensus.agree(ballot, [None, None]) is ballot


class Engine:
    """Stands for verl 0.9's MegatronEngine."""

    def __init__(self, bridge: Any, module: Any) -> None:
        self.bridge, self.module, self._hf_export_tasks = bridge, module, None
        bridge.get_conversion_tasks = lambda model: ["task"]

    def tasks(self) -> Any:
        return export_tasks(lambda engine: None, self)


def test_verl_token_is_a_plan_and_a_reset_makes_another(bridge: Auto, model: list[Module]) -> None:
    engine = Engine(bridge, model)
    for _ in range(3):
        list(export(bridge, model, conversion_tasks=engine.tasks()))
    assert Bridge.planned == 1
    assert plan_cache.stats().exempt == {}
    engine._hf_export_tasks = None  # as verl's initialize(), or a user
    list(export(bridge, model, conversion_tasks=engine.tasks()))
    assert Bridge.planned == 2
    assert reasons()["export options"] == 1


def test_verl_token_read_as_a_list_is_verls_list(bridge: Auto, model: list[Module]) -> None:
    engine = Engine(bridge, model)
    tasks = engine.tasks()
    assert isinstance(tasks, RoutedTasks)
    assert list(tasks) == ["task"]
    assert len(tasks) == 1
    assert tasks[0] == "task"
    bridge.export_weight_dtype = "fp8"
    assert engine.tasks() is None
    bridge.export_weight_dtype, engine._hf_export_tasks = None, ["stale"]
    assert isinstance(engine.tasks(), RoutedTasks)
    del engine
    with pytest.raises(RuntimeError, match="no longer exists"):
        len(RoutedTasks(Engine(bridge, model)))


def test_wrap_says_what_it_got() -> None:
    with pytest.raises(TypeError, match=r"takes a megatron.bridge AutoBridge, got a builtins.dict"):
        plan_cache.wrap({})


def test_groups_of_a_vision_language_models_inner_model_are_seen() -> None:
    """Bridge 0.6 takes the groups of ``language_model`` where the outer model has none."""
    inner, outer = object(), object()
    collection = SimpleNamespace(pp=inner, tp=None, ep=None, expt_tp=None)
    chunk = SimpleNamespace(_modules={}, language_model=SimpleNamespace(pg_collection=collection))
    assert plan_fingerprint.process_groups([chunk])[0] is inner
    chunk.pg_collection = SimpleNamespace(pp=outer, tp=None, ep=None, expt_tp=None)
    assert [g for g in plan_fingerprint.process_groups([chunk]) if g is not None][:2] == [inner, outer]


def test_without_any_group_in_sight_nothing_is_kept(
    bridge: Auto, model: list[Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_consensus, "blind", lambda groups: True)
    for _ in range(2):
        list(export(bridge, model))
    assert plan_cache.stats().exempt == {"no process groups": 2}
    assert plan_cache.stats().entries == 0
