from __future__ import annotations

import functools
import importlib
import inspect
import logging
import pickle
import sys
import threading
from typing import Any

import pytest

from support.world import LEAF, World
from verl_compat import _boot, engine
from verl_compat.records import Add, Has, Lacks, Provide, Register, Replace, Test, Untouched, Wrap
from verl_compat.state import STATE


def leaf() -> object:
    return importlib.import_module("up.leaf")


def snapshot(module: object) -> dict[str, object]:
    found = {"module": dict(vars(module))}
    found["Thing"] = dict(vars(module.Thing))  # type: ignore[attr-defined]
    return found


def test_missing_name_is_added_on_import(world: World) -> None:
    world.package("up", leaf=LEAF)
    world.backport()
    from up.leaf import new  # type: ignore[import-not-found]

    assert new() == "shim"
    assert world.outcome("up_lt_0_5_new") == "applied"


def test_existing_name_is_left_alone(world: World) -> None:
    world.package("up", leaf=LEAF + "\ndef new():\n    return 'own'\n")
    world.backport()
    assert leaf().new() == "own"
    assert world.outcome("up_lt_0_5_new") == "not-needed"


@pytest.mark.parametrize(
    ("version", "outcome"),
    [
        ("0.4.2", "applied"),
        ("0.5.0rc1", "untested"),  # counts as 0.5.0, but lacks the name: the feature test has the last word
        ("0.5.0.dev3", "untested"),
        ("0.5.0+abc", "untested"),
        ("0.4.2+abc", "applied"),
        ("0.4.3.dev1", "untested"),  # in range, newer than what the matrix ran
        ("0.2.0", "out-of-range"),
        ("unknown-build", "untested"),
    ],
)
def test_versions_decide_by_base(world: World, version: str, outcome: str) -> None:
    world.package("up", version=version, leaf=LEAF)
    world.backport()
    assert hasattr(leaf(), "new") is (outcome != "out-of-range")
    assert world.outcome("up_lt_0_5_new") == outcome


@pytest.mark.parametrize("needed", [(), (Has("helper"),)])
def test_beyond_the_range_nothing_is_done_unless_something_lacking_asks(world: World, needed: tuple[Has, ...]) -> None:
    world.package("up", version="0.5.0", leaf=LEAF)
    world.shims.new = 1
    world.adapter("up_blind", Add("new", "world_shims:new"), needed=needed)
    assert not hasattr(leaf(), "new")
    assert world.outcome("up_blind") == "out-of-range"


def test_distribution_of_the_second_condition_missing(world: World) -> None:
    world.package("up", leaf=LEAF)
    world.package("other", leaf="")
    world.backport(applies={"up": ">=0.3.0,<0.5", "other": ">=0.3.0,<0.5"})
    import shutil

    shutil.rmtree(world.site / "other")
    importlib.invalidate_caches()
    leaf()
    assert world.outcome("up_lt_0_5_new") == "out-of-range"
    assert "other not installed" in STATE.entries["up_lt_0_5_new"].reason


def test_wrap_keeps_signature_pickle_and_name(world: World) -> None:
    world.package("up", leaf=LEAF)
    world.shims.twice = lambda original, *args, **kwargs: 2 * original(*args, **kwargs)
    world.adapter("up_wrap", Wrap("helper", "world_shims:twice", params=("a", "b")))
    helper = leaf().helper
    assert helper(1, b=2) == 6
    assert str(inspect.signature(helper)) == "(a, b)"
    assert pickle.loads(pickle.dumps(helper)) is helper
    assert helper.__verl_compat__ == "up_wrap"


def test_wrap_method_static_class_and_property(world: World) -> None:
    world.package(
        "up",
        leaf="class Thing:\n    def run(self): return 'run'\n    @staticmethod\n    def st(): return 'st'\n"
        "    @classmethod\n    def cl(cls): return cls.__name__\n    @property\n    def pr(self): return 'pr'\n",
    )
    world.shims.mark = lambda original, *args: original(*args) + "!"
    world.adapter("up_wrap", *(Wrap(f"Thing.{name}", "world_shims:mark") for name in ("run", "st", "cl", "pr")))
    thing = leaf().Thing()
    assert [thing.run(), thing.st(), type(thing).cl(), thing.pr] == ["run!", "st!", "Thing!", "pr!"]


def _later(world: World) -> Any:
    """An adapter of ``up.leaf`` whose ``helper`` wraps ``up.other.Other.run`` when it is called; that class."""
    world.package("up", leaf=LEAF, other="class Other:\n    def run(self):\n        return 'own'\n")
    other = importlib.import_module("up.other").Other

    def make(module: Any, later: Any) -> Any:
        world.shims.later = later

        def helper(a: int, b: int) -> bool:
            done: bool = later.wrap(other, "run", lambda original, self: original(self) + "!")
            return done

        return helper

    world.shims.make = make
    world.adapter("up_later", Replace("helper", "world_shims:make", later=True))
    return other


def test_what_a_shim_did_later_is_taken_back_first(world: World) -> None:
    other = _later(world)
    own = vars(other)["run"]
    module = leaf()
    assert vars(other)["run"] is own
    assert module.helper(1, 2)
    assert other().run() == "own!"
    assert module.helper(1, 2)  # asked for again: wrapped once
    assert other().run() == "own!"
    assert world.outcome("up_later") == "applied"
    seen: list[Any] = []
    world.shims.later.apply(steps=[_Seen(lambda: seen.append((vars(other)["run"] is own, module.helper(1, 2))))])
    engine.revert()
    assert seen == [(False, True)]  # newest first: everything else was still in place
    assert vars(other)["run"] is own
    assert module.helper(1, 2) == 3


class _Seen:
    """A change of its own kind."""

    def __init__(self, call: Any) -> None:
        self.call = call

    def do(self) -> None:
        pass

    def undo(self) -> None:
        self.call()


@pytest.mark.parametrize("mode", ["auto", "strict"])
def test_a_late_collision_is_a_collision(
    world: World, mode: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The kind: a change made after the import hook is an outcome like all others (it stayed ``applied``)."""
    monkeypatch.setenv("VERL_COMPAT", mode)
    STATE.forget_switches()
    other = _later(world)
    module = leaf()

    def theirs(self: Any) -> str:
        return "theirs"

    other.run = functools.wraps(other.run)(theirs)  # copied names do not hide whose code it is
    if mode == "strict":
        with pytest.raises(engine.StrictError, match="up_later"):
            module.helper(1, 2)
    else:
        assert not module.helper(1, 2)
    assert world.outcome("up_later") == "collision"
    assert "Other.run is already replaced" in STATE.entries["up_later"].reason
    assert "VERL_COMPAT_DISABLE=up_later" in caplog.text
    assert other().run() == "theirs"
    engine.revert()
    assert module.helper(1, 2) == 3


def test_undoing_waits_where_a_shim_says_so(world: World, caplog: pytest.LogCaptureFixture) -> None:
    other = _later(world)
    module = leaf()
    assert module.helper(1, 2)
    busy = ["the sky is falling"]
    world.shims.later.holds.append(lambda: busy[0])
    engine.revert()
    assert other().run() == "own!"
    assert module.helper(1, 2)
    assert STATE.entries["up_later"].reason == "not undone: the sky is falling"
    assert "up_later was not undone: the sky is falling" in caplog.text
    busy[0] = ""
    engine.revert()
    assert other().run() == "own"
    assert world.outcome("up_later") == "disabled"


def test_upstreams_own_work_is_a_collision(world: World) -> None:
    """The kind: where upstream's own code has acted before us, nothing of ours goes on top."""
    world.package("up", leaf=LEAF + "\ndone = ['mine']\n")
    world.shims.other = lambda *args: None
    world.adapter("up_late", Untouched("done", "it already ran"), Replace("helper", "world_shims:other"))
    assert leaf().helper(1, 2) == 3
    assert world.outcome("up_late") == "collision"
    assert "it already ran" in STATE.entries["up_late"].reason


def test_an_error_while_taking_back_leaves_nothing_in_place(world: World, caplog: pytest.LogCaptureFixture) -> None:
    other = _later(world)
    module = leaf()
    module.helper(1, 2)
    world.shims.later.apply(steps=[_Seen(lambda: 1 / 0)])
    engine.revert()
    assert other().run() == "own"
    assert module.helper(1, 2) == 3
    assert "ZeroDivisionError" in caplog.text


def test_adapters_switched_on_later_are_undone_first(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.package("up", leaf=LEAF)
    world.shims.plain = lambda original, *args: original(*args)
    monkeypatch.setenv("VERL_COMPAT_DISABLE", "up_first")
    world.adapter("up_first", Wrap("helper", "world_shims:plain"))
    world.adapter("up_second", Wrap("helper", "world_shims:plain"))
    STATE.forget_switches()
    module = leaf()
    original = inspect.unwrap(module.helper)
    monkeypatch.delenv("VERL_COMPAT_DISABLE")
    engine.activate()
    assert module.helper.__verl_compat__ == "up_first"
    engine.revert()
    assert module.helper is original


@pytest.mark.parametrize("again", ["reload", "revert"])
def test_a_consumer_that_binds_late_keeps_and_loses_the_patch_with_the_target(world: World, again: str) -> None:
    world.package("up", leaf=LEAF)
    (world.site / "user_of_leaf.py").write_text("from up.leaf import helper\n")
    world.shims.mark = lambda original, *args: original(*args) + 100
    world.adapter("up_used", Wrap("helper", "world_shims:mark"), consumers=("user_of_leaf",))
    module, user = leaf(), importlib.import_module("user_of_leaf")
    assert user.helper(1, 2) == 103
    if again == "reload":
        importlib.reload(module)
    else:
        engine.revert()
        assert user.helper is module.helper
        assert user.helper(1, 2) == 3
        engine.activate()
    assert user.helper(1, 2) == 103
    engine.revert()
    assert user.helper(1, 2) == 3


def test_revert_inside_a_watched_import_holds(world: World) -> None:
    world.package("up", leaf="import verl_compat\nverl_compat.revert()\n")
    world.backport()
    assert not hasattr(leaf(), "new")


def test_a_loader_of_the_old_kind_imports_as_before(world: World) -> None:
    world.package("up", leaf=LEAF)
    world.backport()

    class Old:
        def load_module(self, name: str) -> Any:
            module = sys.modules[name] = type(sys)(name)
            vars(module).update(__loader__=self, here=1)
            return module

    class Finds:
        def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
            return importlib.machinery.ModuleSpec(name, Old()) if name == "up.leaf" else None  # type: ignore[arg-type]

    finder = Finds()
    sys.meta_path.insert(1, finder)  # type: ignore[arg-type]
    try:
        assert leaf().here == 1
    finally:
        sys.meta_path.remove(finder)  # type: ignore[arg-type]


def test_undo_is_exact(world: World) -> None:
    world.package("up", leaf=LEAF + "\nTABLE = {'column': {'A'}, 'row': {'B'}}\n")
    engine.revert()
    before = snapshot(leaf())
    order = list(vars(leaf()))
    world.shims.new = world.shims.other = lambda *args: None
    world.adapter(
        "up_all",
        Add("new", "world_shims:new"),
        Add("Thing.extra", "world_shims:new"),
        Replace("helper", "world_shims:other"),
        Wrap("Thing.run", "world_shims:other"),
        Register("TABLE", "column", ("A", "C")),
    )
    engine.activate()
    assert leaf().TABLE == {"column": {"A", "C"}, "row": {"B"}}
    assert world.outcome("up_all") == "late"
    assert leaf().Thing().run(1) is None
    engine.revert()
    assert snapshot(leaf()) == before
    assert list(vars(leaf())) == order
    assert leaf().TABLE == {"column": {"A"}, "row": {"B"}}
    assert _boot.finder() is None


@pytest.mark.parametrize("order", ["iar", "air", "iara", "aira", "airar", "iaara", "irai", "aiira"])
def test_any_order_of_import_activate_revert(world: World, order: str) -> None:
    """Whatever the order, and repeated: patched after an activate that followed, clean after a revert."""
    world.package("up", leaf=LEAF)
    engine.revert()
    world.backport()
    active = False
    for step in order:
        {"i": leaf, "a": engine.activate, "r": engine.revert}[step]()
        active = {"a": True, "r": False}.get(step, active)
        if "up.leaf" in sys.modules:
            assert hasattr(leaf(), "new") is active
    finders = sum(isinstance(finder, _boot.Finder) for finder in sys.meta_path)
    assert finders == active


def test_nothing_is_half_applied_when_one_patch_cannot_be(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.package("up", leaf=LEAF)
    world.shims.new = 1
    world.adapter("up_broken", Add("new", "world_shims:new"), Add("newer", "world_shims:gone"))
    assert not hasattr(leaf(), "new")
    assert world.outcome("up_broken") == "failed"
    (record,) = caplog.records
    for word in ("up_broken", "up 0.4.2", "gone", "https://example.invalid/pr/1", "VERL_COMPAT_DISABLE=up_broken"):
        assert word in record.message


def test_nothing_is_half_applied_when_setting_fails(world: World) -> None:
    guarded = "class M(type):\n    def __setattr__(c, n, v): raise TypeError('frozen')\nclass C(metaclass=M): pass\n"
    world.package("up", leaf=LEAF + guarded)
    world.shims.new = 1
    world.adapter("up_broken", Add("new", "world_shims:new"), Add("C.x", "world_shims:new"))
    assert not hasattr(leaf(), "new")
    assert world.outcome("up_broken") == "failed"


def test_strict_raises(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.package("up", leaf=LEAF)
    world.adapter("up_broken", Add("new", "world_shims:gone"))
    monkeypatch.setenv("VERL_COMPAT", "strict")
    STATE.forget_switches()
    with pytest.raises(engine.StrictError, match="up_broken"):
        leaf()


def test_someone_elses_patch_is_a_collision(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """A co-patcher that copies name and module with functools.wraps is told apart by its file."""
    foreign = "import functools\ndef patch(f):\n    @functools.wraps(f)\n    def w(*a): return f(*a)\n    return w\n"
    world.package("foreign", init=foreign)
    world.package("up", leaf=LEAF + "\nimport foreign\nhelper = foreign.patch(helper)\n")
    world.shims.twice = lambda original, *args: None
    world.adapter("up_wrap", Wrap("helper", "world_shims:twice"))
    assert leaf().helper(1, 2) == 3
    assert world.outcome("up_wrap") == "collision"
    assert "foreign" in caplog.text


def test_drifted_signature_is_not_wrapped(world: World) -> None:
    world.package("up", leaf=LEAF)
    world.shims.twice = lambda original, *args: None
    world.adapter("up_wrap", Wrap("helper", "world_shims:twice", params=("a", "c")))
    assert leaf().helper(1, 2) == 3
    assert world.outcome("up_wrap") == "failed"


def test_wrappers_of_ours_stack_and_unstack(world: World) -> None:
    world.package("up", leaf=LEAF)
    world.shims.plus = lambda original, *args: original(*args) + 10
    world.adapter("up_one", Wrap("helper", "world_shims:plus"))
    world.adapter("up_two", Wrap("helper", "world_shims:plus"))
    module = leaf()
    assert module.helper(1, 2) == 23
    engine.revert()
    assert module.helper(1, 2) == 3


def test_buried_wrapper_falls_silent(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.package("up", leaf=LEAF)
    world.shims.plus = lambda original, *args: original(*args) + 10
    world.adapter("up_wrap", Wrap("helper", "world_shims:plus"))
    module = leaf()
    ours = module.helper
    module.helper = lambda *args: ours(*args) * 100
    engine.revert()
    assert module.helper(1, 2) == 300
    assert "helper was changed by somebody else" in caplog.text


def test_consumers_that_bound_early_are_back_filled_only_where_identical(world: World) -> None:
    world.package("up", leaf=LEAF, user="from up.leaf import helper\n", own="def helper(a, b): return 'own'\n")
    engine.revert()
    import up.own  # type: ignore[import-not-found]
    import up.user  # type: ignore[import-not-found]

    world.shims.plus = lambda original, *args: original(*args) + 10
    world.adapter("up_wrap", Wrap("helper", "world_shims:plus"), consumers=("up.user", "up.own", "up.absent"))
    engine.activate()
    assert up.user.helper(1, 2) == 13
    assert up.own.helper(1, 2) == "own"
    engine.revert()
    assert up.user.helper(1, 2) == 3


def test_reload_applies_again(world: World) -> None:
    world.package("up", leaf=LEAF)
    world.backport()
    module = leaf()
    importlib.reload(module)
    assert module.new() == "shim"
    assert world.outcome("up_lt_0_5_new") == "applied"


def test_reload_of_a_wrapped_module_wraps_once(world: World) -> None:
    world.package("up", leaf=LEAF)
    world.shims.plus = lambda original, *args: original(*args) + 10
    world.adapter("up_wrap", Wrap("helper", "world_shims:plus"))
    assert importlib.reload(leaf()).helper(1, 2) == 13


def test_namespace_parent_and_real_loader(world: World) -> None:
    """``ns`` has no ``__init__``; the module sees its real loader while it executes."""
    (world.site / "ns").mkdir()
    world.package("ns.part", version="0.4.2", leaf="SEEN = type(__spec__.loader).__name__, type(__loader__).__name__\n")
    world.shims.new = 1
    world.adapter("up_ns", Add("new", "world_shims:new"), target="ns.part.leaf", applies={"ns-part": "<0.5"})
    import ns.part.leaf  # type: ignore[import-not-found]

    assert ns.part.leaf.new == 1
    assert ns.part.leaf.SEEN == ("SourceFileLoader", "SourceFileLoader")
    assert type(ns.part.leaf.__spec__.loader).__name__ == "SourceFileLoader"


def test_module_that_replaces_itself(world: World) -> None:
    text = "import sys, types\nm = types.ModuleType(__name__)\nm.__file__ = __file__\nsys.modules[__name__] = m\n"
    world.package("up", leaf=text)
    world.backport()
    assert leaf() is sys.modules["up.leaf"]
    assert leaf().new() == "shim"


def test_half_initialised_at_activation_is_patched_when_complete(world: World) -> None:
    world.package(
        "up",
        leaf="import world_shims\nworld_shims.activate()\nEARLY = 'new' in globals()\n" + LEAF,
    )
    engine.revert()
    world.backport()
    world.shims.activate = engine.activate
    module = leaf()
    assert module.EARLY is False
    importlib.import_module("up")
    import colorsys  # noqa: F401  any later import (or status) finds it complete

    engine.poll_deferred(_boot.finder().deferred)
    assert module.new() == "shim"
    assert world.outcome("up_lt_0_5_new") == "late"


def test_upstream_error_reaches_the_importer_unchanged(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.package("up", leaf="raise RuntimeError('upstream trouble')\n")
    world.backport()
    with pytest.raises(RuntimeError, match="^upstream trouble$"):
        leaf()
    assert "up.leaf" not in sys.modules
    assert not caplog.records


def test_lazy_module_attributes_are_not_forced(world: World) -> None:
    world.package("up", leaf="def __getattr__(name):\n    raise SystemError('forced ' + name)\n")
    world.backport()
    assert leaf().new() == "shim"


def test_disable_only_and_off(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.package("up", leaf=LEAF)
    world.backport()
    for variable, value, applied in [
        ("VERL_COMPAT_DISABLE", "up_lt_0_5_new", False),
        ("VERL_COMPAT_DISABLE", "up", False),
        ("VERL_COMPAT_DISABLE", "bridge", True),
        ("VERL_COMPAT_ONLY", "bridge", False),
        ("VERL_COMPAT_ONLY", "up", True),
        ("VERL_COMPAT", "off", False),
    ]:
        with monkeypatch.context() as patch:
            patch.setenv(variable, value)
            engine.revert()
            engine.activate()
            assert hasattr(leaf(), "new") is applied, (variable, value)


def test_off_by_default_needs_its_id(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.package("up", leaf=LEAF)
    world.backport(default=False)
    assert not hasattr(leaf(), "new")
    assert "VERL_COMPAT_ENABLE=up_lt_0_5_new" in STATE.entries["up_lt_0_5_new"].reason
    monkeypatch.setenv("VERL_COMPAT_ENABLE", "up_lt_0_5_new")
    engine.revert()
    engine.activate()
    assert leaf().new() == "shim"


def test_unknown_switch_words_warn_once_with_close_matches(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world.package("up", leaf=LEAF)
    world.backport()
    monkeypatch.setenv("VERL_COMPAT_DISABLE", "up_lt_0_5_mew")
    STATE.forget_switches()
    leaf()
    STATE.forget_switches()
    assert STATE.switches.disable
    (record,) = caplog.records
    assert "up_lt_0_5_mew" in record.message
    assert "Did you mean up_lt_0_5_new" in record.message


def test_provide_a_module_that_is_gone(world: World) -> None:
    world.package("up", leaf=LEAF)
    world.adapter("up_gone", Provide({"Thing": "up.leaf:Thing"}), target="up.old")
    from up.old import Thing  # type: ignore[import-not-found]

    assert Thing is leaf().Thing
    assert world.outcome("up_gone") == "applied"
    engine.revert()
    assert "up.old" not in sys.modules
    assert not hasattr(sys.modules["up"], "old")
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("up.old")


def test_provided_module_whose_home_is_gone_too_is_not_found(world: World) -> None:
    world.package("up", leaf=LEAF)
    world.adapter("up_gone", Provide({"Thing": "up.nowhere:Thing"}), target="up.old")
    with pytest.raises(ModuleNotFoundError, match="No module named 'up.old'"):
        importlib.import_module("up.old")
    assert world.outcome("up_gone") == "failed"


def test_provide_yields_to_the_real_module(world: World) -> None:
    world.package("up", leaf=LEAF, old="Thing = 'real'\n")
    world.adapter("up_gone", Provide({"Thing": "up.leaf:Thing"}), target="up.old")
    assert importlib.import_module("up.old").Thing == "real"
    assert world.outcome("up_gone") == "not-needed"


def test_feature_tests(world: World) -> None:
    world.package("up", leaf=LEAF)
    world.shims.new, world.shims.yes, world.shims.no = 1, lambda module: True, lambda module: False
    add = Add("new", "world_shims:new")
    for name, feature, outcome in [
        ("up_a", Lacks("helper"), "not-needed"),
        ("up_b", Lacks("helper", "Thing.gone"), "applied"),
        ("up_c", Has("Thing.run", "helper"), "applied"),
        ("up_d", Test("world_shims:no"), "not-needed"),
        ("up_e", Test("world_shims:yes"), "applied"),
        ("up_f", Test("world_shims:gone"), "failed"),
    ]:
        world.adapter(name, Add(f"new_{name}", add.value), needed=(feature,))
        leaf()
        importlib.reload(leaf())
        assert world.outcome(name) == outcome, name


def test_threads_apply_once(world: World) -> None:
    world.package("up", leaf=LEAF)
    world.shims.plus = lambda original, *args: original(*args) + 10
    world.adapter("up_wrap", Wrap("helper", "world_shims:plus"))
    module = leaf()
    engine.revert()
    threads = [threading.Thread(target=engine.activate) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=10)
    assert module.helper(1, 2) == 13


def test_own_warnings_cannot_be_turned_into_errors(world: World, caplog: pytest.LogCaptureFixture) -> None:
    import warnings

    world.package("up", leaf=LEAF)
    world.adapter("up_broken", Add("new", "world_shims:gone"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        leaf()
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
