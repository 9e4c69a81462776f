"""What verl's ``apply_*_patches`` put on vLLM's classes, done atomically and around vLLM's own code.

Called by verl's functions only, when a QAT rollout is being built; a process that does
not ask for it keeps vLLM untouched.  All classes and methods are found before the first
one is changed, so a release that lacks one leaves vLLM as it was and the next attempt
starts afresh (verl leaves half of its patches behind and calls the rest done).  The engine
wraps them: this module only says what.
Upstream: verl 0.7.1 - 0.9.1 ``apply_modelopt_nvfp4_patches`` and ``apply_qat_patches``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from verl_compat.shims import marlin_guard, marlin_reload, marlin_select
from verl_compat.shims.marlin_resolve import find, first, need

if TYPE_CHECKING:
    import torch

_MARK = "__verl_compat__"  # of the engine's wrappers
PROCESS = "process_weights_after_loading"
KV_SCALES = ("k_scale", "v_scale", "q_scale", "prob_scale")


Plan = list[tuple[Any, str, Callable[..., Any]]]
"""Owner, method, and what is called with the original first."""


def modelopt_plan() -> Plan:
    """What to wrap of vLLM's ModelOpt NVFP4 methods: Marlin chosen, weights reloadable, KV scales kept.

    Raises:
        RuntimeError: no FP4 Marlin on this device.
        ImportError: this vLLM has no NVFP4 method that the package knows.
    """
    marlin_select.require_marlin()
    generic = find("ModelOptLinearMethod")
    linear = [generic] if generic else first("ModelOptNvFp4LinearMethod", "ModelOptNvFp4W4A16LinearMethod")
    experts = need("ModelOptNvFp4FusedMoE")
    plan: Plan = []
    for owner in linear:
        plan.append((owner, PROCESS, functools.partial(process, compressed_tensors=False)))
        # 0.30 chooses the kernel when weights are created, before that in the constructor.
        plan.append((owner, "create_weights", _create_linear) if generic else (owner, "__init__", _init_linear))
    plan += [
        (experts, PROCESS, functools.partial(process, compressed_tensors=False)),
        (experts, "__init__", _init_moe),
        (need("BaseKVCacheMethod"), PROCESS, keep_kv_scales),
    ]
    return plan


def compressed_tensors_plan() -> Plan:
    """What to wrap of vLLM's compressed-tensors NVFP4 schemes and MoE method: weights reloadable.

    The kernel stays vLLM's choice: its own conversion runs for whichever it is.

    Raises:
        ImportError: this vLLM has none of the schemes that the package knows.
    """
    owners = first("CompressedTensorsW4A16Fp4", "CompressedTensorsW4A4Fp4")
    owners.append(need("CompressedTensorsW4A4Nvfp4MoEMethod"))
    return [(owner, PROCESS, functools.partial(process, compressed_tensors=True)) for owner in owners]


def unwrapped(owner: Any, name: str) -> Callable[..., Any]:
    """vLLM's own method of a class, whether or not it is wrapped now."""
    found: Callable[..., Any] = getattr(owner, name)
    while hasattr(found, _MARK):
        found = found.__wrapped__  # type: ignore[attr-defined]
    return found


def original_of(method: Any, name: str = PROCESS) -> Callable[..., Any] | None:
    """vLLM's own function behind a method of this object's class, None for foreign objects."""
    current = getattr(type(method), name, None)
    if current is None or not getattr(current, "__module__", "").startswith("vllm."):
        return None
    return unwrapped(type(method), name)


# --- the wrappers ------------------------------------------------------------


def _is_nvfp4(method: Any) -> bool:
    """False for the other formats that share ModelOpt's generic linear method (0.30 and newer)."""
    key = getattr(method, "wkey", None)
    return key is None or type(key).__name__ == "KNvfp4Static"


def process(
    original: Callable[..., Any],
    self: Any,
    layer: torch.nn.Module,
    *,
    compressed_tensors: bool = False,
    on_marlin: bool | None = None,
) -> None:
    """vLLM's own conversion, on repaired scales, into tensors that stay where they are.

    Args:
        original: vLLM's ``process_weights_after_loading`` of this class.
        compressed_tensors: the checkpoint's global scales are divisors (ModelOpt's multiply).
        on_marlin: which kernel it is; None asks the method.
    """
    if not _is_nvfp4(self):
        original(self, layer)
        return
    on_marlin = marlin_select.is_marlin(self) if on_marlin is None else on_marlin

    def before(target: torch.nn.Module, first_load: bool) -> None:
        marlin_guard.guard_scales(target, first_load, compressed_tensors, weight_only=on_marlin)
        if on_marlin and marlin_guard.needs_normalising(need("nvfp4_marlin_process_scales")):
            marlin_guard.normalise_for_old_marlin(target, compressed_tensors)

    marlin_reload.convert(original, self, layer, before, compressed_tensors)


def _init_linear(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> None:
    original(self, *args, **kwargs)
    marlin_select.require_marlin()
    marlin_select.force_linear(self)


def _create_linear(original: Callable[..., Any], self: Any, layer: Any, *args: Any, **kwargs: Any) -> None:
    original(self, layer, *args, **kwargs)
    if not _is_nvfp4(self) or marlin_select.is_marlin(self):
        return
    marlin_select.require_marlin()
    marlin_select.force_linear(self)
    for name in ("_input_quant_key", "input_quant_key"):  # advertised for the kernel that is not used
        vars(layer).pop(name, None)


def _init_moe(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> None:
    original(self, *args, **kwargs)
    marlin_select.require_marlin()
    marlin_select.force_moe(self)


def keep_kv_scales(original: Callable[..., Any], self: Any, layer: torch.nn.Module) -> None:
    """vLLM's own KV-cache processing; the checkpoint scales that it deletes stay loadable.

    verl replaces the method by a copy of an old one, which misses what vLLM added since
    (per-token-head caches in 0.20, CPU copies of the scales in 0.26) and reads
    ``calculate_kv_scales``, gone in 0.28.
    """
    kept = {name: layer._parameters.get(name) for name in KV_SCALES}
    original(self, layer)
    for name, parameter in kept.items():
        if parameter is not None and layer._parameters.get(name) is None:
            vars(layer).pop(name, None)
            layer.register_parameter(name, parameter)
    layer._verl_compat_kv = _kv_values(layer)


def _kv_parameters(layer: torch.nn.Module) -> list[torch.nn.Parameter]:
    return [p for name in KV_SCALES if (p := layer._parameters.get(name)) is not None]


def _kv_values(layer: torch.nn.Module) -> tuple[float, ...] | None:
    """The loaded scales, on the host: the parameters lie in the pool that ``sleep(level=2)`` discards."""
    import torch

    parameters = _kv_parameters(layer)
    return tuple(torch.stack([p.detach().float().reshape(()) for p in parameters]).tolist()) if parameters else None


def _refill_kv(layer: torch.nn.Module) -> None:
    for parameter, value in zip(_kv_parameters(layer), getattr(layer, "_verl_compat_kv", None) or (), strict=False):
        parameter.data.fill_(value)


# --- prepare and process, for a whole model ----------------------------------


def prepare_model(model: Any, device: torch.device | None = None) -> int:
    """Put checkpoint-format parameters on every layer that was converted; how many layers."""
    count = 0
    for layer in model.modules():
        _refill_kv(layer)
        state = marlin_reload.ReloadState.of(layer)
        if state is not None:
            state.restore(layer, device)
            count += 1
    return count


def process_model(model: Any) -> int:
    """Convert everything that was loaded; how many layers.

    The layers that verl's own function visits, and in addition converted layers outside
    ``model.model``, MoE methods that vLLM wrapped for all2all (their wrapper converts
    nothing) and KV-cache scales that changed.  A sync that brought nothing for any of them
    (an adapter's) leaves all of them as they are.

    Raises:
        NotDeliveredError: some layers were delivered and others, or parts, were not.
    """
    _check_delivery(model)
    inner = {id(module) for module in getattr(model, "model", model).modules()}
    count = 0
    caches: list[tuple[Any, Any]] = []
    for module in list(model.modules()):
        method = getattr(module, "quant_method", None)
        if "KVCache" in type(method).__name__:
            caches.append((method, module))
        elif id(module) in inner or marlin_reload.ReloadState.of(module) is not None:
            count += _process_module(module)
    marlin_guard.report()
    return count + _process_caches(caches)


def _check_delivery(model: Any) -> None:
    waiting = {
        name: (layer, state)
        for name, layer in model.named_modules()
        if (state := marlin_reload.ReloadState.of(layer)) is not None and state.restored
    }
    if waiting and all(state.untouched() for _, state in waiting.values()):
        for layer, state in waiting.values():
            state.go_back(layer)
        return
    missing = {name: found for name, (layer, state) in waiting.items() if (found := list(state.missing(layer)))}
    if missing:
        raise marlin_reload.NotDeliveredError(missing)


def _process_module(module: Any) -> int:
    method = method_of(module)
    if method is None or not hasattr(method, PROCESS):
        return 0
    state = marlin_reload.ReloadState.of(module)
    original = original_of(method)
    if state is None or original is None:
        method.process_weights_after_loading(module)
    else:  # also where the class is not wrapped (any more)
        process(original, method, module, compressed_tensors=state.compressed_tensors)
    return 1


def method_of(module: Any) -> Any:
    """What converts a layer: its scheme, or its method below what vLLM put around it for all2all."""
    if hasattr(module, "scheme"):
        return module.scheme
    method = getattr(module, "quant_method", None)
    return getattr(method, "old_quant_method", method)


def _process_caches(caches: list[tuple[Any, Any]]) -> int:
    """KV-cache scales are processed again only where a sync delivered others: one host read for all layers."""
    import torch

    known = [(m, layer) for m, layer in caches if getattr(layer, "_verl_compat_kv", None) and _quantised(layer)]
    scales = [scale.detach().float().reshape(()) for _, layer in known for scale in _kv_parameters(layer)]
    if not scales:
        return 0
    values = iter(torch.stack(scales).tolist())
    count = 0
    for method, layer in known:
        now = tuple(next(values) for _ in _kv_parameters(layer))
        if now != layer._verl_compat_kv:
            method.process_weights_after_loading(layer)
            count += 1
    return count


def _quantised(layer: Any) -> bool:
    return str(getattr(layer, "kv_cache_dtype", "auto")) != "auto"
