"""Expert weights and quantised layers in Bridge's weight conversion, as from 0.4.0 and 0.5.0 on."""

from __future__ import annotations

import inspect
import re
from typing import Any

from verl_compat.shims.qat_names import expert_number

_FUSED_NORM = "LayerNormColumnParallelLinear"
_HANDLED_BY_0_3 = re.compile(r"\.(?:weight|bias)\d+$")


def gather_from_ep_ranks(
    original: Any, self: Any, megatron_weights: Any, megatron_module: Any, hf_param_name: str | None
) -> dict[str, Any]:
    """Wrap Bridge 0.3's ``gather_from_ep_ranks``, which reads the expert from ``.weight3`` only.

    Collective over the expert-parallel group.

    Args:
        original: Bridge's method; does grouped experts.
        self: the parameter mapping; ``megatron_param`` names the (global) parameter.
        megatron_weights: this rank's expert weight, tensor parallelism already gathered.
        megatron_module: its module, or None on a pipeline rank that does not own it.
        hf_param_name: Hugging Face name of this rank's expert.

    Returns:
        The weight of each expert-parallel rank's expert, by Hugging Face name; ranks whose names
        are equal (experts fused in one tensor) are stacked along a new first dimension.
    """
    if _HANDLED_BY_0_3.search(self.megatron_param):
        done: dict[str, Any] = original(self, megatron_weights, megatron_module, hf_param_name)
        return done
    import torch

    per_rank = None
    if megatron_module is not None:
        per_rank = self._get_config(megatron_module).num_moe_experts // self.ep_size
    per_rank = self.broadcast_obj_from_pp_rank(per_rank, "num_experts_per_rank")
    local = expert_number(_no_number, self.megatron_param) % per_rank
    names = [
        re.sub(r"experts\.(\d+)", f"experts.{local + per_rank * rank}", str(hf_param_name))
        for rank in range(self.ep_size)
    ]
    gathered = [torch.empty_like(megatron_weights) for _ in names]
    torch.distributed.all_gather(gathered, megatron_weights.contiguous(), group=self.ep_group)
    weights: dict[str, list[Any]] = {}
    for name, weight in zip(names, gathered, strict=True):
        weights.setdefault(name, []).append(weight)
    return {name: found[0] if len(found) == 1 else torch.stack(found) for name, found in weights.items()}


def _no_number(param_name: str) -> int:
    raise ValueError(f"no expert number in {param_name!r}: expected local_experts.N, weightN, biasN or experts.N")


def detect_parallelism(original: Any, self: Any, module: Any) -> str:
    """Wrap Bridge's ``AutoMapping._detect_parallelism_type``: quantised LayerNorm-column layers.

    ModelOpt calls them ``QuantTELayerNormColumnParallelLinear``; Bridge before 0.5 compares the
    whole class name.

    Returns:
        ``column``, ``row`` or ``replicated``.
    """
    name = _class_name(module)
    if _FUSED_NORM not in name:
        done: str = original(self, module)
        return done
    norm = str(self.megatron_param or "").endswith(("layer_norm_weight", "layer_norm_bias"))
    return "replicated" if norm else "column"


def _class_name(module: Any) -> str:
    """The name of the class that ModelOpt made the module's class from."""
    unwrap = getattr(module, "get_original_cls_by_level", None)
    return str(unwrap(level=0).__name__ if callable(unwrap) else type(module).__name__)


def swiglu_factory_is_old(module: Any) -> bool:
    """Feature test on ``megatron.core.transformer.mlp``: true for no release since 0.14.0."""
    factory = module.apply_swiglu_sharded_factory
    return "singleton_local_shards" not in inspect.signature(factory).parameters


def explain_old_swiglu_factory(module: Any, versions: Any) -> str:
    """What to say where :func:`swiglu_factory_is_old`."""
    return (
        f"megatron-core {versions.get('megatron-core', 'unknown')} cannot save fused SwiGLU weights as single "
        "shards (apply_swiglu_sharded_factory has no singleton_local_shards), which QAT checkpoints need: "
        "install megatron-core>=0.14"
    )
