"""``freeze_moe_router``, as megatron.bridge.training.utils.train_utils has it from Bridge 0.5.0."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from verl_compat.shims.chunks import as_chunk_list

ROUTER_PARAMETERS = ("weight", "bias")
SHARED_EXPERT_PARAMETERS = ("gate_weight", "gate_bias")


def freeze_moe_router(model: Any) -> list[Any]:
    """Pre-wrap hook: stop training the MoE routers and the gates of shared experts (Bridge PR #3813).

    Dense layers, chunks without decoder layers, and parameters that are absent or None are passed over.
    megatron-core from 0.15 on sets ``router.bias = None`` where there is no bias.

    Args:
        model: one megatron module, or the list of model chunks.

    Returns:
        The list of model chunks, changed in place.
    """
    chunks = as_chunk_list(model)
    for layer in _decoder_layers(chunks):
        mlp = getattr(layer, "mlp", None)
        _freeze(getattr(mlp, "router", None), ROUTER_PARAMETERS)
        _freeze(getattr(mlp, "shared_experts", None), SHARED_EXPERT_PARAMETERS)
    return chunks


def _decoder_layers(chunks: list[Any]) -> Iterator[Any]:
    for chunk in chunks:
        yield from getattr(getattr(chunk, "decoder", None), "layers", None) or ()


def _freeze(module: Any, names: tuple[str, ...]) -> None:
    for name in names:
        parameter = getattr(module, name, None)
        if parameter is not None:
            parameter.requires_grad = False
