"""JSON-safe configurations with real torch, NumPy, pydantic and Megatron objects."""

import dataclasses
import json

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support import build_provider
from verl_compat.shims.config_access import config_get
from verl_compat.shims.json_safe import snapshot, to_json_safe


def dumps(value):
    return json.dumps(value, allow_nan=False)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (torch.bfloat16, "torch.bfloat16"),
        (torch.device("cuda", 1), "cuda:1"),
        (torch.Size([2, 3]), [2, 3]),
        (torch.tensor([[1.0, float("nan")]]), {"dtype": "torch.float32", "shape": [1, 2], "values": [[1.0, "NaN"]]}),
        (torch.nn.Parameter(torch.ones(1)), {"dtype": "torch.float32", "shape": [1], "values": [1.0]}),
        (torch.tensor(3), {"dtype": "torch.int64", "shape": [], "values": 3}),
        (torch.ones(1, dtype=torch.bfloat16), {"dtype": "torch.bfloat16", "shape": [1], "values": [1.0]}),
        (torch.zeros(2000, 3), {"dtype": "torch.float32", "shape": [2000, 3]}),
        (torch.empty(2, device="meta"), {"dtype": "torch.float32", "shape": [2]}),
        (torch.eye(2).to_sparse(), {"dtype": "torch.float32", "shape": [2, 2]}),
        (torch.nn.functional.silu, "torch.nn.functional.silu"),
        (torch.nn.Linear(1, 1), "<torch.nn.modules.linear.Linear>"),
        (numpy.float32(1.5), 1.5),
        (numpy.float64("inf"), "Infinity"),
        (numpy.int8(-3), -3),
        (numpy.bool_(True), True),
        (numpy.str_("x"), "x"),
        (numpy.longdouble(2), 2.0),
        (numpy.complex64(1 + 2j), {"real": 1.0, "imag": 2.0}),
        (numpy.dtype("int8"), "int8"),
        (numpy.array([1, 2]), {"dtype": "int64", "shape": [2], "values": [1, 2]}),
        (numpy.array([{"a": 1}], dtype=object), {"dtype": "object", "shape": [1], "values": [{"a": 1}]}),
        (numpy.datetime64("2026-01-02"), "2026-01-02"),
        (numpy.zeros(5000), {"dtype": "float64", "shape": [5000]}),
    ],
)
def test_representation(value, expected):
    assert to_json_safe({"x": value}) == {"x": expected}
    dumps(to_json_safe(value))


numbers = st.lists(st.integers(0, 100), max_size=4)
arrays = st.builds(
    lambda values, dtype: numpy.array(values, dtype=dtype),
    numbers,
    st.sampled_from([numpy.int8, numpy.uint64, numpy.float16, numpy.float32]),
)
dtypes = st.sampled_from([torch.float32, torch.bfloat16, torch.int8, torch.float8_e4m3fn, torch.bool])
tensors = st.builds(lambda values, dtype: torch.tensor(values).to(dtype), numbers, dtypes)
configs = st.recursive(
    st.one_of(arrays, tensors, dtypes),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(configs)
@settings(max_examples=40, deadline=None)
def test_always_strict_json(config):
    text = dumps(to_json_safe(config))
    assert dumps(to_json_safe(config)) == text


def test_pydantic():
    pydantic = pytest.importorskip("pydantic", reason="pydantic is not installed beside this Bridge")

    class Lora(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(extra="allow")
        rank: int = 8
        adapter_path: str | None = None

    config = Lora(adapter_path="here", added=1)
    assert config_get(config, "adapter_path") == "here"
    assert config_get(config, "added") == 1
    assert config_get(config, "copy", "default") == "default"
    assert config_get(config, "absent", "default") == "default"
    assert to_json_safe(config) == {"rank": 8, "adapter_path": "here", "added": 1}


def test_a_real_provider_is_written_whole_and_not_touched(dense_checkpoint):
    _, provider = build_provider(dense_checkpoint)
    provider.activation_cycle = [provider]
    fields = {item.name for item in dataclasses.fields(provider)}
    before = {name: id(value) for name, value in vars(provider).items()}
    done = to_json_safe(provider)
    dumps(done)
    assert {name: id(value) for name, value in vars(provider).items()} == before
    assert fields <= set(done)
    assert done["params_dtype"] == "torch.float32"
    assert done["attention_backend"].startswith("AttnBackend.")
    assert done["activation_func"].endswith("silu")
    assert done["activation_cycle"] == [{"$ref": "#"}]
    assert dumps(to_json_safe(provider)) == dumps(done)


def test_snapshot_of_a_real_provider(dense_checkpoint):
    _, provider = build_provider(dense_checkpoint)
    taken = snapshot(provider)
    assert dataclasses.asdict(taken) == to_json_safe(provider)
    assert hasattr(taken, "finalize_model_grads_func")
    del taken.finalize_model_grads_func  # as verl 0.7 does
    assert "finalize_model_grads_func" in dataclasses.asdict(taken)
    assert hasattr(provider, "finalize_model_grads_func")
