"""Small repairs of single verl releases."""

from __future__ import annotations

import ast
import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import wrapt

from verl_compat.shims.notices import setting


def export_weights(self: Any, models: Any) -> Any:
    """``AutoBridge.export_weights`` as verl 0.7.0's engine calls it: ``export_hf_weights`` (verl PR #4836)."""
    return self.export_hf_weights(models)


if TYPE_CHECKING:
    _Proxy = wrapt.ObjectProxy[Any]
else:
    _Proxy = wrapt.ObjectProxy  # not subscriptable at run time


class StrictSave(_Proxy):
    """A bridge whose ``save_hf_weights`` takes verl's ``checkpoint.strict`` where the caller gives none."""

    def __init__(self, bridge: Any, strict: bool) -> None:
        super().__init__(bridge)
        self._self_strict = strict

    def save_hf_weights(self, *args: Any, **kwargs: Any) -> Any:
        """Bridge's own, with ``strict`` from the configuration."""
        if len(args) < 4:  # model, path, show_progress, strict
            kwargs.setdefault("strict", self._self_strict)
        return self.__wrapped__.save_hf_weights(*args, **kwargs)

    def __copy__(self) -> StrictSave:
        return StrictSave(self.__wrapped__, self._self_strict)

    def __deepcopy__(self, memo: dict[int, Any]) -> StrictSave:
        import copy

        return StrictSave(copy.deepcopy(self.__wrapped__, memo), self._self_strict)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return StrictSave, (self.__wrapped__, self._self_strict)


def save_as_strict_as_configured(original: Callable[..., None], self: Any, *args: Any, **kwargs: Any) -> None:
    """Around verl 0.8's ``MegatronCheckpointManager.__init__`` (verl PR #7264)."""
    original(self, *args, **kwargs)
    strict = getattr(getattr(self, "checkpoint_config", None), "strict", True)
    bridge = getattr(self, "bridge", None)
    if bridge is not None and not getattr(self, "vanilla_bridge", False) and strict is False:
        self.bridge = StrictSave(bridge, strict)


def keep_mtp_off(original: Callable[..., None], model_config: Any, engine_config: Any) -> None:
    """Around ``check_mtp_config`` of verl 0.7.1 and 0.8: MTP that is off stays off when Bridge reads the model anew.

    verl clears the Hugging Face configuration that it holds; Bridge reads its own from the checkpoint
    (verl PR #6626).  mbridge is given verl's configuration, so it needs nothing.
    """
    original(model_config, engine_config)
    if not model_config.mtp.enable and not engine_config.vanilla_mbridge:
        engine_config.override_transformer_config["mtp_num_layers"] = None
        engine_config.override_transformer_config.pop("mtp_loss_scaling_factor", None)


def reduce_grads_in_optimizer_dtype(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    """Around ``MegatronEngine._build_megatron_module``: DDP reduces gradients in the optimizer's dtype (verl PR #7485).

    FP32 unless a precision-aware optimizer keeps its main gradients in a lower one; what
    ``override_ddp_config`` says wins.
    """
    overrides = self.engine_config.override_ddp_config
    optimizer = getattr(self, "optimizer_config", None)
    if self.vanilla_bridge or optimizer is None or overrides is None or "grad_reduce_in_fp32" in overrides:
        return original(self, *args, **kwargs)
    overrides["grad_reduce_in_fp32"] = not _low_precision_grads(optimizer)
    try:
        return original(self, *args, **kwargs)
    finally:
        del overrides["grad_reduce_in_fp32"]


def _low_precision_grads(optimizer: Any) -> bool:
    """Whether the optimizer keeps its main gradients below FP32."""
    if not setting(optimizer, "use_precision_aware_optimizer", False):
        return False
    return str(setting(optimizer, "main_grads_dtype", "fp32")).removeprefix("torch.") not in (
        "fp32",
        "float32",
        "float",
    )


PACKING = ("packed_seq_params", "cp_group")


def takes_no_packing(module: ModuleType) -> bool:
    """Whether mbridge's Qwen3-VL rotary embedding takes neither of :data:`PACKING`."""
    rotary = vars(module).get("Qwen3VLMultimodalRotaryEmbedding")
    if rotary is None:
        return False
    parameters = inspect.signature(rotary.forward).parameters.values()
    catches_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    return not catches_all and not {parameter.name for parameter in parameters} >= set(PACKING)


def ignore_packing(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Around a rotary embedding whose forward takes no packing information, which newer cores pass.

    It is dropped where the angles do not depend on it: they come from the position ids, one per packed
    token, unless context parallelism divides the sequences.  There the call fails as it did.
    """
    accepted = inspect.signature(original).parameters
    for name in PACKING:
        if name in kwargs and name not in accepted and (kwargs[name] is None or _context_parallel_size() == 1):
            del kwargs[name]
    return original(*args, **kwargs)


def _context_parallel_size() -> int:
    from megatron.core import parallel_state

    return int(parallel_state.get_context_parallel_world_size()) if parallel_state.is_initialized() else 1


def has_wide_weight_tuples(module: ModuleType) -> bool:
    """Whether Bridge yields exported weights with more than name and tensor.

    Told from Bridge's source: importing it here would change verl's order of imports, and fail where
    Transformer Engine is missing.
    """
    folders = [*getattr(sys.modules.get("megatron"), "__path__", ()), *(f"{entry}/megatron" for entry in sys.path)]
    files = (Path(folder, "bridge/models/conversion/model_bridge.py") for folder in folders)
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        return False
    found = [node for node in ast.parse(file.read_text(encoding="utf-8")).body if isinstance(node, ast.ClassDef)]
    fields = [
        inner
        for node in found
        if node.name == "HFWeightTuple"
        for inner in node.body
        if isinstance(inner, ast.AnnAssign)
    ]
    return len(fields) > 2


def two_fields(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    """Around verl's ``get_per_tensor_param``: exactly (name, tensor) pairs, however wide Bridge's tuples are."""
    weights, *rest = original(self, *args, **kwargs)
    return (_pairs(weights), *rest)


def _pairs(weights: Any) -> Iterator[tuple[str, Any]]:
    for weight in weights:
        name, tensor, *_ = weight
        yield name, tensor


def drop_ownerless(original: Callable[..., Any], self: Any, hf_pretrained: Any, *args: Any, **kwargs: Any) -> Any:
    """Around Bridge's ``build_conversion_tasks``: tasks that no rank can own are dropped, on every rank alike.

    A parameter whose Hugging Face weight is not in the checkpoint is skipped by its owner and still
    gets a task without weight, which ends in ValueError "Object must exist on at least one PP rank".
    Whether that is so can be told from the checkpoint's keys alone, so no rank has to ask another.
    """
    tasks = original(self, hf_pretrained, *args, **kwargs)
    source = getattr(getattr(hf_pretrained, "state", None), "source", None)
    if source is None or not any(task is not None and task.param_weight is None for task in tasks):
        return tasks
    keys = set(source.get_all_keys())
    lost = [task is not None and _is_ownerless(task, keys) for task in tasks]
    return [task for task, drop in zip(tasks, lost, strict=True) if not drop] if any(lost) else tasks


def _is_ownerless(task: Any, keys: set[str]) -> bool:
    mapping = task.mapping
    if task.param_weight is not None or getattr(mapping, "allow_hf_name_mismatch", False):
        return False
    names = [mapping.hf_param] if isinstance(mapping.hf_param, str) else mapping.hf_param.values()
    return not keys.issuperset(names)


def split_stacked_experts(weights: Any) -> Iterator[tuple[str, Any]]:
    """Stacked expert weights as one tensor per expert and projection; everything else passes unchanged.

    ``...experts.gate_up_proj`` of shape ``[experts, 2 * intermediate, hidden]``: the first half of the rows
    is gate_proj, the second up_proj.  ``...experts.down_proj`` of shape ``[experts, hidden, intermediate]``.
    Slices are views of the stacked tensor.

    Raises:
        ValueError: gate_up_proj has an odd number of rows.
    """
    for name, tensor in weights:
        base, _, leaf = name.removesuffix(".weight").rpartition(".")
        if not base.endswith(".experts") or leaf not in ("gate_up_proj", "down_proj") or tensor.ndim != 3:
            yield name, tensor
            continue
        if leaf == "gate_up_proj" and tensor.shape[1] % 2:
            raise ValueError(f"{name}: {tuple(tensor.shape)} has an odd number of rows; expected [E, 2I, H]")
        for expert in range(tensor.shape[0]):
            if leaf == "down_proj":
                yield f"{base}.{expert}.down_proj.weight", tensor[expert]
                continue
            half = tensor.shape[1] // 2
            yield f"{base}.{expert}.gate_proj.weight", tensor[expert, :half]
            yield f"{base}.{expert}.up_proj.weight", tensor[expert, half:]


def with_split_experts(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    """Around verl's ``get_per_tensor_param``: see :func:`split_stacked_experts`."""
    weights, *rest = original(self, *args, **kwargs)
    return (split_stacked_experts(weights), *rest)


def make_worker_wrapper(module: ModuleType) -> Callable[..., Any]:
    """``WorkerWrapperBase`` for verl 0.7.0 on vLLM >= 0.14, whose constructor takes no ``vllm_config`` any more."""
    native = vars(module)["WorkerWrapperBase"]

    @functools.wraps(native, updated=())
    def worker_wrapper(*args: Any, vllm_config: Any = None, **kwargs: Any) -> Any:
        return native(*args, **kwargs)

    return worker_wrapper


def refuses_vllm_config(module: ModuleType) -> bool:
    """Whether ``WorkerWrapperBase`` takes no ``vllm_config``."""
    native = vars(module).get("WorkerWrapperBase")
    return native is not None and "vllm_config" not in inspect.signature(native).parameters


def make_build_app(module: ModuleType) -> Callable[..., Any]:
    """``build_app(args)`` for verl 0.7.0 on vLLM 0.16, which requires the supported tasks (0.17 defaults to these)."""
    native = vars(module)["build_app"]

    @functools.wraps(native)
    def build_app(args: Any, supported_tasks: Any = ("generate",), **kwargs: Any) -> Any:
        return native(args, supported_tasks, **kwargs)

    return build_app


def requires_supported_tasks(module: ModuleType) -> bool:
    """Whether ``build_app`` cannot be called with its arguments alone."""
    native = vars(module).get("build_app")
    parameter = inspect.signature(native).parameters.get("supported_tasks") if native is not None else None
    return parameter is not None and parameter.default is inspect.Parameter.empty
