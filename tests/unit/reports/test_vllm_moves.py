"""Names that vLLM moved, for the verl releases that know the old ones.

Stand-ins: packages with vLLM's layout before and after each move (vLLM itself needs its compiled kernels).
"""

from __future__ import annotations

import pytest


def test_lora_models(stubs):
    """agent-lightning#437: one class object under both names."""
    stubs.dist("vllm", "0.15.1", lora__lora_model="class LoRAModel: ...\n")
    old, new = stubs.load("vllm.lora.models"), stubs.load("vllm.lora.lora_model")
    assert old.LoRAModel is new.LoRAModel
    assert stubs.outcome("vllm_lora_models_moved") == "applied"


def test_lora_models_before_the_move(stubs):
    stubs.dist("vllm", "0.12.0", lora__models="class LoRAModel: ...\n")
    assert stubs.load("vllm.lora.models").LoRAModel.__module__ == "vllm.lora.models"
    assert stubs.outcome("vllm_lora_models_moved") in ("not-needed", "out-of-range")


def test_a_home_that_is_gone_too_fails_as_without_us(stubs):
    stubs.dist("vllm", "0.99.0", lora__something_else="")
    with pytest.raises(ModuleNotFoundError, match=r"vllm\.lora\.models"):
        stubs.load("vllm.lora.models")


@pytest.mark.parametrize(
    ("vllm", "home"),
    [("0.12.0", "entrypoints__harmony_utils"), ("0.24.0", "entrypoints__openai__parser__harmony_utils")],
)
def test_harmony_utils(stubs, vllm, home):
    """verl#4934."""
    stubs.dist("vllm", vllm, **{home: "def get_encoding(): return 'harmony'\n"})
    assert stubs.load("vllm.entrypoints.harmony_utils").get_encoding() == "harmony"
    moved = vllm != "0.12.0"
    assert (stubs.outcome("vllm_harmony_utils_moved") == "applied") is moved


LAYER_CLASS = "class FusedMoE: ...\n"
LAYER_GONE = "from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts\n"
LAYER_FUNCTION = LAYER_GONE + "def FusedMoE(num_experts, top_k): ...\n"
PACKAGE = """
    from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
    from vllm.model_executor.layers.fused_moe.runner import MoERunner
"""
RUNNER = """
    class MoERunner:
        def __init__(self, routed_experts):
            self.routed_experts = routed_experts
"""
FP8_UTILS = """
    from vllm.model_executor.layers.fused_moe.layer import FusedMoE

    def get_module_from_param_name(model, name: str):
        for part in name.split(".")[:-1]:
            if isinstance(model, FusedMoE):
                return model
            model = getattr(model, part)
        return model

    def is_fp8_weight(name, model):
        module = get_module_from_param_name(model, name)
        return isinstance(module, FusedMoE) and module.w13_weight == "fp8"

    def apply_vllm_fp8_patches(): ...
"""


@pytest.fixture
def moe(stubs):
    def make(vllm, layer):
        stubs.dist("vllm", vllm)
        home = "vllm.model_executor.layers.fused_moe"
        if layer is not LAYER_CLASS:
            stubs.module(f"{home}.routed_experts", "class RoutedExperts:\n    w13_weight = 'fp8'\n")
            stubs.module(f"{home}.runner", RUNNER)
        stubs.module(f"{home}.layer", layer)
        stubs.module(home, "" if layer is LAYER_CLASS else PACKAGE)
        return home

    return make


class Node:
    """A module of a model."""

    def __init__(self, **children):
        self.__dict__.update(children)


@pytest.mark.parametrize(
    ("vllm", "layer"), [("0.24.0", LAYER_FUNCTION), ("0.29.0", LAYER_GONE), ("0.33.0", LAYER_GONE)]
)
def test_expert_weights_are_found(stubs, moe, vllm, layer):
    """verl 0.8.0 with FP8 rollout: the walk stops at the runner, the weights are on its RoutedExperts."""
    home = moe(vllm, layer)
    stubs.dist("verl", "0.8.0", utils__vllm__vllm_fp8_utils=FP8_UTILS)
    utils = stubs.load("verl.utils.vllm.vllm_fp8_utils")
    experts = stubs.load(f"{home}.routed_experts").RoutedExperts()
    model = Node(mlp=Node(experts=stubs.load(f"{home}.runner").MoERunner(experts), gate=Node()))
    assert utils.get_module_from_param_name(model, "mlp.experts.0.gate_proj.weight") is experts
    assert utils.is_fp8_weight("mlp.experts.0.gate_proj.weight", model)
    assert not utils.is_fp8_weight("mlp.gate.weight", model)


def test_fused_moe_class_is_left_alone(stubs, moe):
    home = moe("0.20.2", LAYER_CLASS)
    stubs.dist("verl", "0.8.0", utils__vllm__vllm_fp8_utils=FP8_UTILS)
    utils = stubs.load("verl.utils.vllm.vllm_fp8_utils")
    assert utils.FusedMoE is stubs.load(f"{home}.layer").FusedMoE
    assert stubs.outcome("verl_lt_0_9_fused_moe_class") in ("not-needed", "out-of-range")


def test_verl_0_9_decides_by_the_missing_name(stubs, moe):
    """verl 0.9 takes its new path because the name is gone: it must stay gone."""
    home = moe("0.29.0", LAYER_GONE)
    stubs.dist("verl", "0.9.1")
    assert not hasattr(stubs.load(f"{home}.layer"), "FusedMoE")
    assert stubs.outcome("vllm_ge_0_27_fused_moe_name") == "out-of-range"


@pytest.mark.parametrize(("vllm", "outcome"), [("0.18.1", "applied"), ("0.20.2", "applied")])
def test_routed_experts_of_older_vllm(stubs, moe, vllm, outcome):
    """verl 0.9.1: `from vllm.model_executor.layers.fused_moe import RoutedExperts` in each FP8 refit."""
    home = moe(vllm, LAYER_CLASS)
    stubs.dist("verl", "0.9.1")
    package = stubs.load(home)
    assert package.RoutedExperts is stubs.load(f"{home}.layer").FusedMoE
    assert stubs.outcome("vllm_lt_0_22_routed_experts") == outcome


def test_routed_experts_of_newer_vllm_are_its_own(stubs, moe):
    home = moe("0.24.0", LAYER_FUNCTION)
    stubs.dist("verl", "0.9.1")
    assert stubs.load(home).RoutedExperts.__module__ == f"{home}.routed_experts"
    assert stubs.outcome("vllm_lt_0_22_routed_experts") in ("not-needed", "out-of-range")


@pytest.mark.parametrize(
    ("verl", "vllm", "told"),
    [
        ("0.7.1", "0.20.2", True),
        ("0.7.0", "0.33.0", True),
        ("0.7.0", "0.17.1", True),
        ("0.7.0", "0.12.0", False),
        ("0.7.1", "0.17.1", False),
        ("0.8.0", "0.20.2", False),
    ],
)
def test_fp8_rollout_of_verl_0_7(stubs, moe, said, verl, vllm, told):
    """verl#5683: said when the FP8 patches are applied, which is before training starts."""
    moe(vllm, LAYER_CLASS)
    stubs.dist("verl", verl, utils__vllm__vllm_fp8_utils=FP8_UTILS)
    utils = stubs.load("verl.utils.vllm.vllm_fp8_utils")
    utils.apply_vllm_fp8_patches()
    utils.apply_vllm_fp8_patches()
    texts = [text for text in said() if "quantization=fp8" in text]
    assert len(texts) == told
    assert all(f"verl {verl}" in text and f"vllm {vllm}" in text for text in texts)


METHOD = """
    class Backend:
        def __init__(self, name):
            self.name = name

    class UnquantizedFusedMoEMethod:
        def __init__(self, moe):
            self.unquantized_backend, self.experts_cls = Backend(moe), None
"""


@pytest.mark.parametrize(("backend", "told"), [("FLASHINFER_TRTLLM", True), ("TRITON", False)])
def test_moe_backend_that_cannot_be_reloaded(stubs, said, backend, told):
    """verl#7978: what vLLM really chose decides, so that no other GPU is warned of it."""
    stubs.dist("verl", "0.9.1")
    stubs.dist("vllm", "0.24.0", model_executor__layers__fused_moe__unquantized_fused_moe_method=METHOD)
    module = stubs.load("vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method")
    for _ in range(2):
        assert module.UnquantizedFusedMoEMethod(backend).experts_cls is None
    assert len(said()) == told


FP4_UTILS = """
    _MXFP4_LIVE_ATTR = "_verl_mxfp4_live_params"

    def _replace_parameter_in_place(layer, param_name, new_data, prefer_copy=False):
        from vllm.model_executor.utils import replace_parameter
        live = getattr(layer, _MXFP4_LIVE_ATTR, None) or {}
        param = live.pop(param_name, None)
        if param is None or new_data is None:
            return replace_parameter(layer, param_name, new_data, prefer_copy)
        return "folded", param
"""


@pytest.mark.parametrize(("vllm", "last"), [("0.29.0", ", prefer_copy=False"), ("0.33.0", "")])
def test_replace_parameter(stubs, vllm, last):
    """vLLM 0.33 dropped prefer_copy."""
    replace = f"def replace_parameter(layer, param_name, new_tensor{last}):\n    return 'replaced', new_tensor\n"
    stubs.dist("vllm", vllm, model_executor__utils=replace)
    stubs.dist("verl", "0.9.1", utils__vllm__vllm_fp4_utils=FP4_UTILS)
    in_place = stubs.load("verl.utils.vllm.vllm_fp4_utils")._replace_parameter_in_place
    layer = Node(_verl_mxfp4_live_params={"w13_weight": "live", "w2_weight": "live"})
    assert in_place(layer, "w13_weight", "new") == ("folded", "live")
    assert in_place(layer, "w2_weight", None) == ("replaced", None)
    assert in_place(layer, "w2_bias", "new", prefer_copy=True) == ("replaced", "new")
    assert layer._verl_mxfp4_live_params == {}
    outcome = stubs.outcome("verl_ge_0_9_mxfp4_replace_parameter")
    assert (outcome == "applied") is (vllm == "0.33.0")
