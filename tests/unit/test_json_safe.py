"""Any configuration becomes strict JSON, deterministically and without being changed."""

import collections
import copy
import dataclasses
import datetime
import decimal
import enum
import functools
import json
import math
import pathlib
import re
import threading
import types
import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_compat.shims.json_safe import (
    MAX_DEPTH,
    json_safe_config_dict,
    save_with_config_snapshot,
    snapshot,
    to_json_safe,
)


class Backend(enum.Enum):
    flash = 1


class Level(enum.IntEnum):
    high = 3


class Kind(str, enum.Enum):
    lora = "lora value"


class Modes(enum.Flag):
    a = 1
    b = 2


@dataclasses.dataclass
class Config:
    value: object = None
    other: object = None


def silent(_):
    return None


def dumps(value):
    return json.dumps(value, allow_nan=False)


def resolve(document, pointer):
    here = document
    for part in pointer.removeprefix("#").split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        here = here[int(part)] if isinstance(here, list) else here[part]
    return here


leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.complex_numbers(),
    st.text(),
    st.binary(),
    st.decimals(),
    st.fractions(),
    st.dates(),
    st.datetimes(),
    st.timedeltas(),
    st.uuids(),
    st.sampled_from([Backend.flash, Level.high, Kind.lora, Modes.a | Modes.b, len, int, pathlib.PurePosixPath("a/b")]),
)
keys = st.one_of(
    st.text(max_size=3),
    st.integers(-2, 2),
    st.floats(),
    st.booleans(),
    st.none(),
    st.tuples(st.integers(0, 1)),
)


def nest(inner):
    return st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(keys, inner, max_size=4),
        st.builds(Config, inner, inner),
        st.builds(types.SimpleNamespace, a=inner, b=inner),
        st.builds(lambda item: functools.partial(print, item, end=item), inner),
        st.tuples(inner, inner),
        st.sets(st.one_of(st.integers(), st.text(), st.binary(), st.floats()), max_size=4),
    )


anything = st.recursive(leaves, nest, max_leaves=25)


@given(anything)
@settings(max_examples=300, deadline=None)
def test_always_strict_json_and_deterministic(config):
    done = to_json_safe(config, on_collision=silent)
    text = dumps(done)
    assert json.loads(text) == done
    assert dumps(to_json_safe(config, on_collision=silent)) == text
    assert text.encode("utf-8")


@given(anything)
@settings(max_examples=150, deadline=None)
def test_idempotent_and_never_mutating(config):
    before = repr(config)
    done = to_json_safe(config, on_collision=silent)
    assert repr(config) == before
    assert to_json_safe(done, on_collision=silent) == done or "$ref" in dumps(done)


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text()),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text().filter(lambda key: key != "$ref"), inner)),
    max_leaves=20,
)


@given(json_values)
@settings(deadline=None)
def test_what_is_json_already_stays_as_it_is(config):
    assert dumps(to_json_safe(config)) == dumps(config)


@given(st.dictionaries(keys, st.integers(), max_size=8))
@settings(deadline=None)
def test_no_entry_of_a_mapping_is_lost(config):
    reports = []
    done = to_json_safe(config, on_collision=reports.append)
    assert list(done.values()) == list(config.values())


def test_colliding_keys_are_kept_and_reported(caplog):
    reports = []
    done = to_json_safe({"x": {1: "number", "1": "text"}}, on_collision=reports.append)
    assert done == {"x": {"1 (int)": "number", "1": "text"}}
    assert len(reports) == 1
    assert "#/x" in reports[0]
    assert "'1 (int)'" in reports[0]
    to_json_safe({1.0: 1, "1.0": 2})
    assert "two keys of # are both '1.0'" in caplog.text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Backend.flash, '"Backend.flash"'),
        (Level.high, '"Level.high"'),
        (Kind.lora, '"Kind.lora"'),
        (math.nan, '"NaN"'),
        (-math.inf, '"-Infinity"'),
        (1 - 2j, '{"real": 1.0, "imag": -2.0}'),
        (b"\xff", '{"base64": "/w=="}'),
        ({"b", "a"}, '["a", "b"]'),
        (frozenset({2, 10}), "[10, 2]"),
        (pathlib.PurePosixPath("a/b"), '"a/b"'),
        (functools.partial(int, base=2), '{"partial": "builtins.int", "args": [], "keywords": {"base": 2}}'),
        (dumps, f'"{__name__}.dumps"'),
        (Config, f'"{__name__}.Config"'),
        (Config().__eq__, f'"{__name__}.Config.__eq__"'),
        (json, '"<builtins.module>"'),
        (threading.Lock(), '"<_thread.lock>"'),
        (collections.namedtuple("Point", "x y")(1, 2), '{"x": 1, "y": 2}'),
        (collections.deque([1]), "[1]"),
        ({None: 1, True: 2, (0, "a"): 3}, '{"null": 1, "true": 2, "[\\"0\\", \\"a\\"]": 3}'),
        (re.compile("a+"), '"a+"'),
        (decimal.Decimal("1.10"), '"1.10"'),
        (datetime.date(2026, 1, 2), '"2026-01-02"'),
        (uuid.UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
        ("\ud800", '"\\\\ud800"'),
        (range(3), '"range(0, 3)"'),
    ],
)
def test_representation(value, text):
    assert dumps(to_json_safe(value)) == text


def test_huge_integers_can_be_written():
    assert to_json_safe(10**5000) == hex(10**5000)
    assert dumps(to_json_safe(10**300)) == str(10**300)


def test_nested_dataclasses_keep_every_field_and_added_attributes():
    config = Config(value=Config(1, {Backend.flash: math.nan}))
    config.added = Backend.flash
    assert to_json_safe(config) == {
        "value": {"value": 1, "other": {"Backend.flash": "NaN"}},
        "other": None,
        "added": "Backend.flash",
    }


def test_slots_properties_and_own_dicts():
    class Slotted:
        __slots__ = ("a", "b")

    class Hub:
        def to_dict(self):
            return {"model_type": "qwen3"}

    slotted = Slotted()
    slotted.a = 1
    assert to_json_safe([slotted, Hub()]) == [{"a": 1}, {"model_type": "qwen3"}]


def test_what_cannot_be_read_is_named_not_raised():
    @dataclasses.dataclass
    class Broken:
        fine: int = 1
        bad: int = 2

        def __getattribute__(self, name):
            if name == "bad":
                raise RuntimeError("no")
            return object.__getattribute__(self, name)

    class Liar:
        @property
        def __class__(self):
            raise ValueError("who am I")

    assert to_json_safe(Broken()) == {"fine": 1, "bad": "<unreadable: RuntimeError>"}
    assert "unreadable, ValueError" in dumps(to_json_safe({"x": Liar()}))


def test_cycles_are_json_pointers():
    config = Config()
    config.value = {"a/b": [config]}
    config.other = config.value
    done = to_json_safe(config)
    assert done["value"] == {"a/b": [{"$ref": "#"}]}
    assert done["other"] == done["value"]
    assert resolve(done, done["value"]["a/b"][0]["$ref"]) is done


def test_a_key_named_like_our_mark_is_escaped():
    assert to_json_safe({"$ref": 1, "$deep": 2}) == {"$$ref": 1, "$deep": 2}


def test_shared_containers_do_not_explode():
    config = []
    for _ in range(200):
        config = [config, config]
    assert len(dumps(to_json_safe(config))) < 100_000
    small = {"a": 1}
    assert to_json_safe([small, small]) == [{"a": 1}, {"a": 1}]


def test_deep_nesting_is_moved_not_lost():
    config = bottom = {"level": 0, "$deep": "mine"}
    for level in range(1, 5000):
        bottom["below"] = {"level": level}
        bottom = bottom["below"]
    done = to_json_safe(config)
    json.loads(dumps(done))
    assert done["$deep"] == "mine"
    levels, here = [], done
    while here is not None:
        levels.append(here["level"])
        here = here.get("below")
        if here is not None and "$ref" in here:
            here = resolve(done, here["$ref"])
    assert levels == list(range(5000))


def test_deep_list_has_a_root():
    config = []
    for _ in range(MAX_DEPTH + 1):
        config = [config]
    done = to_json_safe(config)
    assert done["$deep"] == [[]] or done["$deep"] == [[[]]]
    assert dumps(done["$root"]).count("[") == MAX_DEPTH


def test_endless_objects_end():
    class Endless:
        def to_dict(self):
            return {"next": Endless()}

    json.loads(dumps(to_json_safe(Endless())))


def test_sets_with_cycles_are_stable():
    class Node:
        pass

    node = Node()
    node.group = {node, "a"}
    assert to_json_safe(node) == {"group": ["a", {"$ref": "#"}]}


def test_verl_0_8_entry_point_takes_the_shallow_dict():
    assert json_safe_config_dict({"a": {1, 2}, "b": Config(1)}) == {
        "a": [1, 2],
        "b": {"value": 1, "other": None},
    }


class Manager:
    def __init__(self, config):
        self.transformer_config = config

    def save(self, fail=False):
        """What verl 0.7 does, in short."""
        config = self.transformer_config
        kept = {}
        for name in ("value", "absent"):
            if hasattr(config, name):
                kept[name] = getattr(config, name)
                delattr(config, name)
        written = dataclasses.asdict(config)
        if fail:
            raise OSError("disk full")
        for name, value in kept.items():
            setattr(config, name, value)
        return dumps(written), repr(config)


@pytest.mark.parametrize("fail", [False, True])
def test_the_live_config_survives_a_save(fail):
    config = Config(value=dumps, other={"lock": threading.Lock(), "x": [Config(Backend.flash)]})
    before = copy.copy(config.__dict__)
    manager = Manager(config)
    if fail:
        with pytest.raises(OSError, match="disk full"):
            save_with_config_snapshot(Manager.save, manager, fail=True)
    else:
        text, shown = save_with_config_snapshot(Manager.save, manager)
        assert json.loads(text)["value"] == f"{__name__}.dumps"
        assert json.loads(text)["other"]["x"] == [{"value": "Backend.flash", "other": None}]
        assert shown == repr(config)
    assert manager.transformer_config is config
    assert config.__dict__ == before


def test_snapshot_leaves_what_is_no_object_alone():
    for config in ([1], {"not a name": 1}, None):
        assert snapshot(config) is config
