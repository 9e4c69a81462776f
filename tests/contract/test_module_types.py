"""``bridge_lt_0_5_module_types``: value heads and ModelOpt's linear layers are known to weight conversion."""

import pytest
import torch

EXPECTED = {
    "LinearForLastLayer": "replicated",
    "QuantColumnParallelLinear": "column",
    "QuantRowParallelLinear": "row",
}


@pytest.mark.parametrize("name", EXPECTED)
def test_parallelism_is_detected_by_class_name(name):
    from megatron.bridge.models.conversion.param_mapping import AutoMapping

    module = type(name, (torch.nn.Linear,), {})(2, 2)
    mapping = AutoMapping("decoder.weight", "model.weight")
    assert mapping._detect_parallelism_type(module) == EXPECTED[name]


def test_each_type_is_registered_once():
    from megatron.bridge.models.conversion.param_mapping import AutoMapping

    registry = AutoMapping._MODULE_TYPE_REGISTRY
    for name, expected in EXPECTED.items():
        assert [kind for kind, types in registry.items() if name in types] == [expected]


def test_unknown_types_are_still_refused():
    from megatron.bridge.models.conversion.param_mapping import AutoMapping

    module = type("NoSuchLayer", (torch.nn.Module,), {})()
    with pytest.raises(ValueError, match="NoSuchLayer"):
        AutoMapping("decoder.weight", "model.weight")._detect_parallelism_type(module)
