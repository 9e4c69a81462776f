"""Stand-ins for verl's NVFP4 functions; each says which one it replaces.

verl's files ``utils/modelopt/vllm_modelopt_patch.py`` (0.8.0 - 0.9.1) and
``utils/qat/vllm_patch.py`` (0.7.1 - 0.9.1) repeat vLLM's conversion by hand.  These
functions keep their names, arguments and side effects, and run vLLM's own conversion.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from verl_compat.shims import marlin, marlin_handover, marlin_install, marlin_reload, marlin_select
from verl_compat.shims.marlin_resolve import need

if TYPE_CHECKING:
    import torch


def apply_modelopt(module: ModuleType, later: Any) -> Callable[[], None]:
    """For ``apply_modelopt_nvfp4_patches``: all methods or none, and again after a failure."""
    own = marlin_handover.HandOver(dict(vars(module)), compressed_tensors=False)
    later.holds.append(marlin_reload.in_progress)

    def apply_modelopt_nvfp4_patches() -> None:
        """Make vLLM's ModelOpt NVFP4 methods use Marlin and reload weights in place."""
        plan = marlin_install.modelopt_plan()
        later.apply(plan, [(module, "_patched", True)], [] if later.steps else [own])

    return apply_modelopt_nvfp4_patches


def apply_qat(module: ModuleType, later: Any) -> Callable[[], list[Any]]:
    """For ``apply_qat_patches``: returns the list of patches, as verl does."""
    own = marlin_handover.HandOver(dict(vars(module)), compressed_tensors=True)
    later.holds.append(marlin_reload.in_progress)

    def apply_qat_patches() -> list[Any]:
        """Make vLLM's compressed-tensors NVFP4 methods reload weights in place."""
        plan = marlin_install.compressed_tensors_plan()
        done = [f"{owner.__qualname__}.{name}" for owner, name, _ in plan]
        later.apply(plan, [(module, "_applied_patches", done)], [] if later.steps else [own])
        return list(vars(module)["_applied_patches"])

    return apply_qat_patches


def prepare_modelopt(module: ModuleType) -> Callable[..., Any]:
    """For ``prepare_modelopt_for_weight_reload``."""
    return _prepare(module, "ModelOptParamMetaDict")


def prepare_qat(module: ModuleType) -> Callable[..., Any]:
    """For ``prepare_qat_for_load_weights``."""
    return _prepare(module, "ParamMetaDict")


def _prepare(module: ModuleType, mapping: str) -> Callable[..., Any]:
    def prepare(model: Any, device: torch.device | None = None) -> Any:
        """Put checkpoint-format parameters back on the model; call once before each reload."""
        marlin_install.prepare_model(model, device)
        inner = getattr(model, "model", model)
        inner._param_meta_for_restore = vars(module)[mapping](inner, device=device)
        return inner._param_meta_for_restore

    return prepare


def process_model(model: Any) -> int:
    """For ``modelopt_process_weights_after_loading`` and ``manual_process_weights_after_loading``."""
    return marlin_install.process_model(model)


def process_modelopt_dense(self: Any, layer: torch.nn.Module) -> None:
    """For ``_modelopt_dense_process_weights``."""
    original = marlin_install.original_of(self)
    if original is not None:
        marlin_install.process(original, self, layer)
    else:
        marlin_install.process(_dense_on_marlin, self, layer, on_marlin=True)


def process_modelopt_moe(self: Any, layer: torch.nn.Module) -> None:
    """For ``_modelopt_moe_process_weights``."""
    original = marlin_install.original_of(self)
    if original is None:
        original = marlin_install.unwrapped(need("ModelOptNvFp4FusedMoE"), marlin_install.PROCESS)
        if not marlin_select.is_marlin(self):
            marlin_select.force_moe(self)
    marlin_install.process(original, self, layer)


def process_compressed_tensors(self: Any, layer: torch.nn.Module) -> None:
    """For ``patched_w4a16_...``, ``patched_w4a4_...`` and ``patched_nvfp4_moe_process_weights_after_loading``.

    Raises:
        TypeError: ``self`` is no method or scheme of vLLM, so there is no conversion to run.
    """
    original = marlin_install.original_of(self)
    if original is None:
        raise TypeError(f"expected a compressed-tensors scheme or MoE method of vLLM, got {type(self).__name__}")
    marlin_install.process(original, self, layer, compressed_tensors=True)


def process_kv(self: Any, layer: torch.nn.Module) -> None:
    """For ``_modelopt_kv_process_weights``."""
    original = marlin_install.unwrapped(need("BaseKVCacheMethod"), marlin_install.PROCESS)
    marlin_install.keep_kv_scales(original, self, layer)


def process_expert_scales(
    scale_hf: torch.Tensor, param_dtype: torch.dtype, size_k: int, size_n: int, group_size: int, num_experts: int
) -> torch.Tensor:
    """For ``_marlin_process_scales_experts``, whose callers divide no global scale: the factor is 1."""
    import torch

    upstream, permute = need("nvfp4_marlin_process_scales"), need("marlin_permute_scales")
    wide = scale_hf.to(param_dtype)
    permuted = [permute(s=s.T, size_k=size_k, size_n=size_n, group_size=group_size) for s in wide[:num_experts]]
    done = [marlin.process_scales(upstream, s, factor=1.0, a_dtype=param_dtype)[0] for s in permuted]
    return torch.stack(done)


def _dense_on_marlin(self: Any, layer: torch.nn.Module) -> None:
    """A ModelOpt dense layer without its vLLM method: standard names, then vLLM's own Marlin conversion."""
    import inspect

    import torch
    from torch.nn import Parameter

    weight_scale_2 = layer.weight_scale_2.max().to(torch.float32)
    parameters = inspect.signature(need("apply_fp4_marlin_linear")).parameters
    del layer.weight_scale_2
    # The attribute was renamed in vLLM 0.16.
    name = "weight_global_scale" if "weight_global_scale" in parameters else "weight_scale_2"
    setattr(layer, name, Parameter(weight_scale_2, requires_grad=False))
    if "input_scale" in layer._parameters:
        input_scale = layer.input_scale.max().to(torch.float32)
        layer.input_global_scale = Parameter(input_scale, requires_grad=False)
        layer.alpha = Parameter(input_scale * weight_scale_2, requires_grad=False)
        layer.input_global_scale_inv = Parameter(marlin.safe_reciprocal(input_scale), requires_grad=False)
        del layer.input_scale
    need("prepare_fp4_layer_for_marlin")(layer)


def too_old(_module: ModuleType, versions: Mapping[str, str]) -> str:
    """What to tell a user whose vLLM is older than NVFP4 reloads can be made to work on."""
    return (
        f"NVFP4 QAT of verl {versions.get('verl', '?')} cannot reload weights on vLLM {versions.get('vllm', '?')}: "
        "its NVFP4 MoE method does not exist before vLLM 0.12. Use vLLM 0.12 or newer, or switch QAT off."
    )
