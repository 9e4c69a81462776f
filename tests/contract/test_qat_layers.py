"""Quantised layers in weight conversion, and what needs no repair, on each Bridge release."""

import pytest
import torch
from packaging.version import Version

import verl_compat
from support.versions import BRIDGE
from verl_compat.shims.qat_layers import explain_old_swiglu_factory, swiglu_factory_is_old


def layer(name):
    """A layer whose class has the name that ModelOpt gives it; the class itself needs a GPU."""
    return type(name, (torch.nn.Module,), {})()


class Dynamic(torch.nn.Module):
    """What a ModelOpt DynamicModule says of the class that it was made from."""

    def get_original_cls_by_level(self, level):
        assert level == 0
        return type("TELayerNormColumnParallelLinear", (), {})


@pytest.mark.parametrize(
    "name",
    [
        "TELayerNormColumnParallelLinear",
        "QuantTELayerNormColumnParallelLinear",
        "InferenceLayerNormColumnParallelLinear",
    ],
)
@pytest.mark.parametrize(
    ("parameter", "expected"),
    [("weight", "column"), ("bias", "column"), ("layer_norm_weight", "replicated"), ("layer_norm_bias", "replicated")],
)
def test_fused_norm_column_layers(name, parameter, expected):
    from megatron.bridge.models.conversion.param_mapping import AutoMapping

    mapping = AutoMapping(f"decoder.layers.*.linear_qkv.{parameter}", "model.layers.*.qkv")
    assert mapping._detect_parallelism_type(layer(name)) == expected


def test_other_layers_are_detected_as_before():
    from megatron.bridge.models.conversion.param_mapping import AutoMapping

    mapping = AutoMapping("decoder.layers.*.linear.weight", "model.layers.*.linear")
    for name, expected in {
        "ColumnParallelLinear": "column",
        "RowParallelLinear": "row",
        "TENorm": "replicated",
        "QuantRowParallelLinear": "row",
    }.items():
        assert mapping._detect_parallelism_type(layer(name)) == expected
    with pytest.raises(ValueError, match="Cannot determine parallelism type for module 'Nothing'"):
        mapping._detect_parallelism_type(layer("Nothing"))


def test_dynamic_module_is_unwrapped():
    from verl_compat.shims.qat_layers import detect_parallelism

    mapping = type("Mapping", (), {"megatron_param": "linear_qkv.weight"})()
    assert detect_parallelism(None, mapping, Dynamic()) == "column"


def test_no_released_core_needs_the_swiglu_factory():
    from megatron.core.transformer import mlp

    assert swiglu_factory_is_old(mlp) is False
    assert verl_compat.status().outcome("core_swiglu_sharded_factory") == "not-needed"


def test_what_is_said_where_a_core_would_need_it():
    old = type("mlp", (), {"apply_swiglu_sharded_factory": staticmethod(lambda original, offsets: None)})
    assert swiglu_factory_is_old(old) is True
    text = explain_old_swiglu_factory(old, {"megatron-core": "0.13.0"})
    assert "megatron-core 0.13.0" in text
    assert "install megatron-core>=0.14" in text


def test_outcomes_in_this_process(single_process):
    from megatron.bridge.models.conversion import model_bridge, param_mapping, peft_bridge, utils  # noqa: F401
    from megatron.bridge.training import checkpointing  # noqa: F401

    status = verl_compat.status()
    for adapter, until in {
        "bridge_lt_0_4_expert_gather": "0.4",
        "bridge_lt_0_5_expert_names": "0.5",
        "bridge_lt_0_5_expert_number": "0.5",
        "bridge_lt_0_5_quantised_norm_column": "0.5",
        "bridge_lt_0_5_fsdp_checkpoint": "0.5",
    }.items():
        expected = ("applied", "late") if Version(until) > BRIDGE else ("out-of-range", "not-needed")
        assert status.outcome(adapter) in expected, adapter
    for adapter in ("bridge_quantizer_buffers", "bridge_provider_settings"):
        assert status.outcome(adapter) in ("applied", "late"), adapter
