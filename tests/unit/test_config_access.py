"""Reading configurations of every shape, with no upstream installed."""

import argparse
import collections
import copy
import dataclasses
import pickle
import types

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_compat.shims.config_access import (
    AttributeDict,
    ConfigReadError,
    config_get,
    read_lora_by_attribute,
    readable_by_attribute,
)

names = st.from_regex(r"key_[a-z]{0,6}", fullmatch=True)
values = st.one_of(st.none(), st.booleans(), st.integers(), st.text(), st.lists(st.integers()))


class Plain:
    def __init__(self, **items):
        self.__dict__.update(items)


class Slotted:
    __slots__ = ("adapter_path",)


class Reading(collections.abc.Mapping):
    """Like verl's BaseConfig: a Mapping whose items are its attributes."""

    def __init__(self, **items):
        self.__dict__.update(items)

    def __getitem__(self, key):
        return getattr(self, key)

    def __iter__(self):
        return iter(self.__dict__)

    def __len__(self):
        return len(self.__dict__)


def as_dataclass(**items):
    return dataclasses.make_dataclass("Config", list(items))(**items)


SHAPES = [
    lambda **items: dict(items),
    lambda **items: collections.OrderedDict(items),
    lambda **items: types.MappingProxyType(items),
    lambda **items: collections.defaultdict(list, items),
    lambda **items: collections.ChainMap({}, items),
    types.SimpleNamespace,
    argparse.Namespace,
    as_dataclass,
    Plain,
    Reading,
    AttributeDict,
]


@given(items=st.dictionaries(names, values), absent=st.from_regex(r"no_[a-z]+", fullmatch=True))
def test_every_shape_gives_the_same_answer(items, absent):
    for shape in SHAPES:
        config = shape(**items)
        before = dict(getattr(config, "__dict__", {}))
        for key, value in items.items():
            assert config_get(config, key, "default") == value
        assert config_get(config, absent) is None
        assert config_get(config, absent, "default") == "default"
        assert getattr(config, "__dict__", {}) == before
        if isinstance(config, dict):
            assert absent not in config


def test_absence_is_told_from_none():
    assert config_get({"adapter_path": None}, "adapter_path", "default") is None
    assert config_get(None, "adapter_path", "default") == "default"
    assert config_get(Slotted(), "adapter_path", "default") == "default"


def test_methods_are_no_values():
    @dataclasses.dataclass
    class Config:
        rank: int = 8

        def copy(self):
            return self

        @property
        def dim(self):
            return self.rank

    assert config_get(Config(), "copy", "default") == "default"
    assert config_get(Config(), "dim") == 8
    assert config_get({"items": 3}, "items") == 3
    assert config_get(types.SimpleNamespace(copy=print), "copy") is print


@pytest.mark.parametrize("config", ["lora", 8, [("adapter_path", "x")], {"adapter_path"}, b"x"])
def test_what_holds_no_keys_is_refused(config):
    with pytest.raises(TypeError, match=f"cannot read 'adapter_path' from a {type(config).__name__}"):
        config_get(config, "adapter_path")


def test_key_must_be_text():
    with pytest.raises(TypeError, match="a configuration key is a string, got int"):
        config_get({1: 2}, 1)


def test_a_value_that_raises_is_named():
    class Config:
        @property
        def adapter_path(self):
            raise OSError("disk is away")

    with pytest.raises(ConfigReadError, match="'adapter_path' is there but cannot be read: OSError: disk is away"):
        config_get(Config(), "adapter_path")


@given(items=st.dictionaries(names, values))
def test_attribute_dict_is_the_dict(items):
    view = readable_by_attribute(items)
    assert view == items
    assert isinstance(view, dict)
    for key, value in items.items():
        assert getattr(view, key) == value
    assert getattr(view, "absent", None) is None
    for twin in (copy.deepcopy(view), copy.copy(view), pickle.loads(pickle.dumps(view))):
        assert twin == items
        assert type(twin) is AttributeDict


def test_only_plain_dicts_are_replaced():
    for config in (None, types.SimpleNamespace(adapter_path="x"), collections.OrderedDict()):
        assert readable_by_attribute(config) is config


@pytest.mark.parametrize("by_name", [False, True])
def test_wrapper_reaches_the_argument_however_it_is_passed(by_name):
    def make(wrap_config, peft_cls=None, peft_config=None):
        return getattr(peft_config, "adapter_path", None), wrap_config, peft_cls

    lora = {"adapter_path": "somewhere"}
    args, kwargs = ((1,), {"peft_config": lora}) if by_name else ((1, None, lora), {})
    assert read_lora_by_attribute(make, *args, **kwargs) == ("somewhere", 1, None)
    assert type(lora) is dict


def test_wrapper_leaves_wrong_calls_to_upstream():
    def make(wrap_config):
        return wrap_config

    with pytest.raises(TypeError, match=r"make\(\) missing 1 required positional argument"):
        read_lora_by_attribute(make)
