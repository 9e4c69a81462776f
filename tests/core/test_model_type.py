"""ModelType.encoder_and_decoder on real megatron-core (verl#6936)."""

from __future__ import annotations

import copy
import pickle

import pytest
from packaging.version import Version

import verl_compat

ADAPTER = "core_ge_0_17_encoder_and_decoder"


@pytest.fixture
def model_type():
    from megatron.core.enums import ModelType

    return ModelType


def test_added_only_where_core_dropped_it(core, model_type):
    """Before 0.17 core's own property stays; from 0.17 on the name is there."""
    if core < Version("0.17"):
        assert verl_compat.status().outcome(ADAPTER) in ("not-needed", "out-of-range")
        assert isinstance(vars(model_type)["encoder_and_decoder"], property)
    else:
        assert verl_compat.status().outcome(ADAPTER) == "applied"


def test_it_equals_no_real_type(model_type):
    """verl 0.8: `assert model_type != ModelType.encoder_and_decoder`, then `if model_type == ...`."""
    gone = model_type.encoder_and_decoder
    for real in model_type:
        assert real != gone
        assert gone != real
        assert gone not in {real: 0}
    assert gone == model_type.encoder_and_decoder


def test_it_is_no_member(model_type):
    assert "encoder_and_decoder" not in model_type.__members__
    assert next(iter(model_type)).name == "encoder_or_decoder"
    assert not isinstance(model_type.encoder_and_decoder, model_type)
    with pytest.raises(KeyError):
        model_type["encoder_and_decoder"]


def test_look_up_by_value_is_unchanged(core, model_type):
    assert model_type(1) is model_type.encoder_or_decoder
    if core >= Version("0.16"):
        with pytest.raises(ValueError):
            model_type(2)
    else:  # retro_encoder
        assert model_type(2).name == "retro_encoder"


def test_pickling_and_copying(core, model_type):
    for real in model_type:
        assert pickle.loads(pickle.dumps(real)) is real
    if core >= Version("0.17"):
        gone = model_type.encoder_and_decoder
        assert pickle.loads(pickle.dumps(gone)) is gone
        assert copy.deepcopy(gone) is gone
