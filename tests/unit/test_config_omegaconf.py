"""Configurations of OmegaConf: struct mode, missing values, interpolation."""

import dataclasses
import json

import pytest

from verl_compat.shims.config_access import ConfigReadError, config_get, readable_by_attribute
from verl_compat.shims.json_safe import to_json_safe

omegaconf = pytest.importorskip("omegaconf", reason="omegaconf is not installed here")
OmegaConf = omegaconf.OmegaConf


@dataclasses.dataclass
class Lora:
    rank: int = 8
    adapter_path: str = omegaconf.MISSING


@pytest.mark.parametrize("struct", [False, True])
def test_present_missing_and_absent(struct):
    config = OmegaConf.create({"rank": 8, "adapter_path": "???", "none": None, "nested": {"a": 1}})
    OmegaConf.set_struct(config, struct)
    assert config_get(config, "rank") == 8
    assert config_get(config, "adapter_path", "default") == "default"
    assert config_get(config, "absent", "default") == "default"
    assert config_get(config, "none", "default") is None
    assert config_get(config, "nested") == {"a": 1}
    assert "absent" not in config


def test_structured_config():
    config = OmegaConf.structured(Lora)
    assert config_get(config, "rank") == 8
    assert config_get(config, "adapter_path", "default") == "default"
    assert config_get(config, "absent", "default") == "default"
    config.adapter_path = "here"
    assert config_get(config, "adapter_path") == "here"


def test_interpolation_is_resolved():
    config = OmegaConf.create({"root": "/data", "lora": {"adapter_path": "${root}/adapter"}})
    assert config_get(config.lora, "adapter_path") == "/data/adapter"


def test_interpolation_of_a_missing_value_counts_as_absent():
    config = OmegaConf.create({"root": "???", "adapter_path": "${root}"})
    assert config_get(config, "adapter_path", "default") == "default"


def test_broken_interpolation_is_an_error_not_a_default():
    config = OmegaConf.create({"adapter_path": "${nowhere.at.all}"})
    with pytest.raises(ConfigReadError, match="'adapter_path' is there but cannot be read: Interpolation"):
        config_get(config, "adapter_path", "default")


def test_empty_config_gives_the_default():
    assert config_get(OmegaConf.create(None), "adapter_path", "default") == "default"
    assert config_get(OmegaConf.create(), "adapter_path", "default") == "default"


def test_dictconfig_is_readable_by_attribute_already():
    config = OmegaConf.create({"adapter_path": "here"})
    assert readable_by_attribute(config) is config


def test_json_of_omegaconf():
    config = OmegaConf.create({"a": [1, {"b": "${c}"}], "c": 2, "missing": "???", "broken": "${nowhere}"})
    done = to_json_safe({"config": config, "list": config.a})
    assert done["config"]["a"] == [1, {"b": "${c}"}]  # one interpolation leads nowhere: all are kept as written
    assert done["config"]["missing"] == "???"
    assert done["config"]["broken"] == "${nowhere}"
    assert done["list"] == [1, {"b": 2}]
    json.dumps(done, allow_nan=False)


def test_json_of_a_structured_config():
    assert to_json_safe(OmegaConf.structured(Lora)) == {"rank": 8, "adapter_path": "???"}
