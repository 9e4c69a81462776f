"""verl's router replay on megatron-core releases whose signatures differ."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any


def lacks_pp_rank(module: ModuleType) -> bool:
    """Whether core's ``get_transformer_layer_offset`` takes no ``pp_rank`` (core 0.14 and older)."""
    native = vars(module).get("get_transformer_layer_offset")
    return native is not None and "pp_rank" not in inspect.signature(native).parameters


def make_layer_offset(module: ModuleType) -> Callable[..., int]:
    """``get_transformer_layer_offset(config, vp_stage, pp_rank)``, from a core that lacks parameters.

    ``pp_rank`` is honoured through core's own ``set_pipeline_model_parallel_rank``, for the call.

    Raises (the result):
        ValueError: another virtual stage is asked of a core that takes none (before 0.13).
    """
    native = vars(module)["get_transformer_layer_offset"]
    takes_stage = "vp_stage" in inspect.signature(native).parameters

    def get_transformer_layer_offset(config: Any, vp_stage: int | None = None, pp_rank: int | None = None) -> int:
        from megatron.core import parallel_state

        arguments = {"vp_stage": vp_stage} if takes_stage else {}
        if not takes_stage and vp_stage:
            _require_own_stage(parallel_state, vp_stage)
        if pp_rank is None or pp_rank == parallel_state.get_pipeline_model_parallel_rank():
            return int(native(config, **arguments))
        kept = getattr(parallel_state, "_MPU_PIPELINE_MODEL_PARALLEL_RANK", None)
        parallel_state.set_pipeline_model_parallel_rank(pp_rank)
        try:
            return int(native(config, **arguments))
        finally:
            parallel_state.set_pipeline_model_parallel_rank(kept)

    return get_transformer_layer_offset


def _require_own_stage(parallel_state: Any, vp_stage: int) -> None:
    own = parallel_state.get_virtual_pipeline_model_parallel_rank() or 0
    if vp_stage != own:
        raise ValueError(
            f"the layer offset of virtual pipeline stage {vp_stage} was asked for, but this megatron-core can tell "
            f"only that of the current stage ({own}); use megatron-core >= 0.15 or no virtual pipeline"
        )


def drops_padding_mask(module: ModuleType) -> bool:
    """Whether verl's ``patched_routing`` takes the logits only (verl 0.7.0)."""
    patched = vars(module).get("patched_routing")
    return patched is not None and list(inspect.signature(patched).parameters) == ["self", "logits"]


def make_routing(module: ModuleType) -> Callable[..., Any]:
    """verl 0.7.0's ``patched_routing`` for core >= 0.16, which also passes ``padding_mask`` (verl PR #5155).

    Args (of the result):
        logits: ``[sequence, batch, experts]``, any floating dtype.
        padding_mask: with a mask and no replay set up, core's own routing is called, which honours it;
            where replay gives the routing, the mask has no say, as in verl 0.7.1.
    """
    patched = vars(module)["patched_routing"]
    native = vars(module)["TopKRouter"].routing

    def patched_routing(self: Any, logits: Any, *args: Any, **kwargs: Any) -> Any:
        mask = args[0] if args else kwargs.get("padding_mask")
        if mask is not None and getattr(self, "router_replay", None) is None:
            return native(self, logits, *args, **kwargs)
        return patched(self, logits)

    return patched_routing
