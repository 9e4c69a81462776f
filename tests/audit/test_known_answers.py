"""Answers that were found by reading and running the released wheels, without this audit."""

from __future__ import annotations

import pytest

from audit.support import at, audited, imports, names

BRIDGE = {"0.3.1": "0.16.1", "0.4.2": "0.17.1", "0.5.1": "0.18.2", "0.6.2": "0.19.2"}  # the core it pairs with
OLD_BRIDGE, NEW_BRIDGE = ["0.3.1", "0.4.2"], ["0.5.1", "0.6.2"]


def on_bridge(verl: str, bridge: str) -> set[tuple[str, int, str]]:
    return names(audited(f"verl {verl}", f"bridge {bridge}", f"core {BRIDGE[bridge]}"), dist="bridge")


# --- verl on Megatron-Bridge -------------------------------------------------


@pytest.mark.parametrize("bridge", OLD_BRIDGE)
def test_verl_0_8_on_old_bridge(bridge: str) -> None:
    found = on_bridge("0.8.0", bridge)
    expected = {
        ("bridge.py", 18, "LinearForLastLayer"),
        ("bridge.py", 18, "freeze_moe_router"),
        ("bridge.py", 18, "make_value_model"),
        ("megatron_utils.py", 251, "create_peft_hook"),
        ("megatron_utils.py", 251, "load_peft_adapter_checkpoint"),
        ("megatron_utils.py", 252, "create_ddp_config"),
        ("transformer_impl.py", 231, "apply_overrides_and_finalize"),
        ("megatron_peft.py", 28, "create_peft"),
        ("megatron_checkpoint_manager.py", 465, "load_fsdp_dtensor_checkpoint"),
        ("megatron_checkpoint_manager.py", 517, "save_fsdp_dtensor_checkpoint"),
    }
    assert found == expected


@pytest.mark.parametrize("bridge", OLD_BRIDGE)
@pytest.mark.parametrize(("verl", "peft", "load", "save"), [("0.9.0", 349, 729, 799), ("0.9.1", 399, 732, 802)])
def test_verl_0_9_on_old_bridge(verl: str, peft: int, load: int, save: int, bridge: str) -> None:
    assert on_bridge(verl, bridge) == {
        ("megatron_peft.py", 28, "create_peft"),
        ("megatron_utils.py", peft, "create_peft_hook"),
        ("megatron_utils.py", peft, "load_peft_adapter_checkpoint"),
        ("megatron_checkpoint_manager.py", load, "load_fsdp_dtensor_checkpoint"),
        ("megatron_checkpoint_manager.py", save, "save_fsdp_dtensor_checkpoint"),
    }


@pytest.mark.parametrize("verl", ["0.7.0", "0.7.1"])
@pytest.mark.parametrize("bridge", BRIDGE)
def test_verl_0_7_finds_all_its_names_on_every_bridge(verl: str, bridge: str) -> None:
    assert on_bridge(verl, bridge) == set()


@pytest.mark.parametrize("verl", ["0.8.0", "0.9.0", "0.9.1"])
@pytest.mark.parametrize("bridge", NEW_BRIDGE)
def test_nothing_is_reported_at_calls_that_are_fine(verl: str, bridge: str) -> None:
    assert on_bridge(verl, bridge) == set()


def test_guarded_uses_are_told_apart_from_bare_ones() -> None:
    result = audited("verl 0.9.1", "bridge 0.4.2", "core 0.17.1")
    guarded = {name for _, _, name in names(result, guard="exception", dist="bridge")}
    assert {"LinearForLastLayer", "make_value_model", "freeze_moe_router", "create_ddp_config"} <= guarded
    assert {f.guard for f in at(result, "transformer_impl.py", 399)} <= {"presence"}  # hasattr before the call
    # 0.8.0 catches the same ImportError and raises it again
    again = at(audited("verl 0.8.0", "bridge 0.4.2", "core 0.17.1"), "mcore/bridge.py", 18)
    assert {finding.guard for finding in again} == {"none"}


# --- verl on megatron-core ---------------------------------------------------


@pytest.mark.parametrize(
    ("verl", "lines"), [("0.7.0", {63, 83, 84}), ("0.7.1", {70, 90, 91}), ("0.8.0", {72, 92, 93}), ("0.9.1", set())]
)
def test_encoder_and_decoder(verl: str, lines: set[int]) -> None:
    new = names(audited(f"verl {verl}", "core 0.17.1"))
    assert {line for _, line, name in new if name == "encoder_and_decoder"} == lines
    old = names(audited(f"verl {verl}", "core 0.16.1"))
    assert not {line for _, line, name in old if name == "encoder_and_decoder"}


@pytest.mark.parametrize(
    ("verl", "places"),
    [
        ("0.7.0", {("megatron_workers.py", 919), ("megatron_checkpoint_manager.py", 693)}),
        ("0.7.1", {("megatron_workers.py", 956), ("megatron_checkpoint_manager.py", 754)}),
        ("0.8.0", {("megatron_checkpoint_manager.py", 924)}),
    ],
)
def test_async_calls(verl: str, places: set[tuple[str, int]]) -> None:
    for core, missing in (("0.16.1", False), ("0.17.1", True), ("0.19.2", True)):
        found = names(audited(f"verl {verl}", f"core {core}"))
        here = {
            (file, line) for file, line, name in found if name in ("async_calls", "AsyncRequest", "AsyncCallsQueue")
        }
        assert (places <= here) is missing, core


@pytest.mark.parametrize("core", ["0.16.1", "0.17.1", "0.18.2", "0.19.2"])
def test_features_that_no_released_core_has(core: str) -> None:
    found = {name for _, _, name in names(audited("verl 0.9.1", f"core {core}"))}
    assert {"DefaultDynamicCPScheduler", "DistributedDataParallelConfig"} <= found
    assert ("tag_params_for_buffer_routing" in found) is (core in ("0.16.1", "0.17.1"))


def test_keyword_that_the_patched_method_does_not_take() -> None:
    """Core 0.16 calls ``self.routing(..., padding_mask=...)``; verl 0.7.0 puts ``(self, logits)`` in its place."""
    for core, wrong in (("0.15.3", False), ("0.16.1", True)):
        found = [
            f for f in audited("verl 0.7.0", f"core {core}").unguarded
            if f.problem == "override-signature" and f.file.endswith("router_replay_patch.py")
        ]  # fmt: skip
        assert bool(found) is wrong
        assert all("padding_mask" in f.detail for f in found)


# --- verl on vLLM ------------------------------------------------------------

MODELOPT, QAT = "vllm_modelopt_patch.py", "qat/vllm_patch.py"


@pytest.mark.parametrize(
    ("vllm", "file", "line", "name"),
    [
        ("0.17.1", MODELOPT, 274, "nvfp4_marlin_process_scales"),  # TypeError: a_dtype
        ("0.17.1", MODELOPT, 277, "nvfp4_marlin_process_global_scale"),
        ("0.17.1", QAT, 371, "swizzle_blockscale"),
        ("0.20.2", QAT, 371, "swizzle_blockscale"),
        ("0.20.2", QAT, 728, "process_weights_after_loading"),  # compressed_tensors_moe became a package
        ("0.24.0", MODELOPT, 530, "MarlinExperts"),
        ("0.24.0", MODELOPT, 435, "make_nvfp4_moe_kernel"),  # shared_experts is gone
        ("0.24.0", QAT, 371, "swizzle_blockscale"),
        ("0.24.0", QAT, 716, "process_weights_after_loading"),  # CompressedTensorsW4A16Fp4 is gone
        ("0.24.0", QAT, 728, "process_weights_after_loading"),
        ("0.30.0", MODELOPT, 258, "gptq_marlin_repack"),  # perm is gone
        ("0.30.0", MODELOPT, 435, "make_nvfp4_moe_kernel"),  # backend is required
        ("0.30.0", MODELOPT, 530, "MarlinExperts"),
        ("0.30.0", MODELOPT, 608, "ModelOptNvFp4LinearMethod"),
        ("0.30.0", QAT, 716, "process_weights_after_loading"),
    ],
)
@pytest.mark.parametrize("verl", ["0.9.0", "0.9.1"])
def test_nvfp4_on_vllm(verl: str, vllm: str, file: str, line: int, name: str) -> None:
    found = at(audited(f"verl {verl}", f"vllm {vllm}"), file, line)
    assert name in {f.symbol.rpartition(".")[2] for f in found if f.guard == "none"}


@pytest.mark.parametrize(
    ("vllm", "file", "line"),
    [("0.17.1", MODELOPT, 530), ("0.20.2", MODELOPT, 530), ("0.20.2", MODELOPT, 435), ("0.20.2", MODELOPT, 274),
     ("0.20.2", QAT, 716), ("0.24.0", MODELOPT, 608), ("0.24.0", MODELOPT, 258)],
)  # fmt: skip
def test_nvfp4_that_is_fine(vllm: str, file: str, line: int) -> None:
    assert at(audited("verl 0.9.1", f"vllm {vllm}"), file, line) == []


def test_version_dispatch_is_followed() -> None:
    """verl uses its function for vLLM 0.18 and 0.19 only where vLLM is older than 0.20."""
    new = at(audited("verl 0.9.1", "vllm 0.24.0"), "vllm_fp8_utils.py", 315)
    assert [(f.symbol.rpartition(".")[2], f.guard) for f in new] == [("maybe_post_process_fp8_weight_block", "version")]
    assert at(audited("verl 0.9.1", "vllm 0.17.1"), "vllm_fp8_utils.py", 315) == []


def test_an_import_that_falls_back_on_one_that_exists_is_no_finding() -> None:
    """``try: from vllm.lora.lora_model ... except ImportError: from vllm.lora.models ...``."""
    found = audited("verl 0.9.1", "vllm 0.24.0")
    assert not [f for f in found.findings if f.symbol.endswith("LoRAModel")]


def test_class_that_became_a_function_and_then_went() -> None:
    found = audited("verl 0.9.1", "vllm 0.30.0")
    assert ("vllm_quant_utils.py", 46, "FusedMoE") in names(found, guard="exception")


# --- upstream on upstream ----------------------------------------------------


@pytest.mark.parametrize(
    ("bridge", "core", "at_least"),
    [("0.3.1", "0.15.3", 13), ("0.3.1", "0.17.1", 3), ("0.4.2", "0.15.3", 27), ("0.4.2", "0.16.1", 12),
     ("0.5.1", "0.16.1", 85), ("0.5.1", "0.17.1", 56), ("0.6.2", "0.17.1", 80), ("0.6.2", "0.18.2", 3)],
)  # fmt: skip
def test_bridge_on_a_core_that_it_does_not_fit(bridge: str, core: str, at_least: int) -> None:
    # the numbers are of a plain search for import statements; this audit finds a few more
    assert at_least <= imports(audited(f"bridge {bridge}", f"core {core}")) <= at_least * 1.1 + 3


@pytest.mark.parametrize(
    ("bridge", "core"), [*BRIDGE.items(), ("0.4.2", "0.18.2"), ("0.4.2", "0.19.2"), ("0.5.1", "0.19.2")]
)
def test_bridge_finds_every_import_on_a_core_that_it_fits(bridge: str, core: str) -> None:
    assert imports(audited(f"bridge {bridge}", f"core {core}")) == 0


def test_bridge_0_3_dies_in_get_model_on_core_0_17() -> None:
    found = names(audited("bridge 0.3.1", "core 0.17.1"))
    expected = {("model_provider.py", 632, "encoder_and_decoder"), ("model_provider.py", 649, "encoder_and_decoder")}
    assert expected <= found


def test_mbridge_on_core() -> None:
    assert names(audited("mbridge 0.15.1", "core 0.19.2"))
