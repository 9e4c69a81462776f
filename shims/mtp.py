"""verl's copies of megatron-core's multi-token-prediction methods, on cores that call them otherwise."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

_HOOKS = ("padding_mask", "output_processor", "output_processor_context")


class _StandIn:
    """An object that has some attributes of its own and takes all others from another object."""

    def __init__(self, of: Any, **own: Any) -> None:
        self.__dict__.update(own)
        self.__dict__["_of"] = of

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of, name)


def _takes(function: Callable[..., Any], name: str) -> bool:
    return name in inspect.signature(function).parameters


# --- verl.models.mcore.mtp_patch ----------------------------------------------


def core_calls_with_padding_mask(module: ModuleType) -> bool:
    """Whether core passes ``padding_mask`` to ``_postprocess`` and verl's copy does not take it (verl 0.7.1, 0.8)."""
    copy = vars(module)["_megatron_gptmodel_postprocess"]
    return _takes(vars(module)["GPTModel"]._postprocess, "padding_mask") and not _takes(copy, "padding_mask")


def postprocess_as_core(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    """verl's ``_postprocess`` on core >= 0.18: with labels, core's own MTP; without, verl's copy, which runs none.

    Core's method takes all that core's callers pass (the mask, its own groups and process_mtp_loss's arguments) and
    ends in an output processor; ours gives what verl's copy gives.

    Returns:
        Logits ``[batch, sequence, vocabulary]`` in the output layer's dtype, not scaled (``verl_mtp_output`` does
        that); hidden states ``[sequence, batch, hidden]`` where the stage has no output layer.
    """
    own = type(self)._postprocess
    named = inspect.signature(own).bind(self, *args, **kwargs).arguments
    if named.get("labels") is None or not self.config.mtp_num_layers:
        return original(self, *args, **{name: value for name, value in kwargs.items() if name not in _HOOKS})
    named.pop("self")
    return own(self, **{**named, "output_processor": _logits, "output_processor_context": None})


def _logits(
    *, hidden_states: Any, output_layer: Any, output_weight: Any, runtime_gather_output: Any, **_unused: Any
) -> Any:
    logits, _ = output_layer(hidden_states, weight=output_weight, runtime_gather_output=runtime_gather_output)
    return logits.transpose(0, 1).contiguous()


def finish_output(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    """What core's ``_postprocess`` does after MTP and verl's copies leave out.

    An ``output_processor`` of the caller (core >= 0.18; verl 0.9's fused kernels) is called by core's own method, and
    logits are scaled where the model is MuP's (core >= 0.17).
    """
    if kwargs.get("output_processor") is not None:
        return type(self)._postprocess(self, *args, **kwargs)
    output = original(self, *args, **kwargs)
    scale = getattr(self, "_scale_logits", None)
    return output if scale is None or not self.post_process else scale(output)


def embeddings_with_mask(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    """verl's ``_get_embeddings`` that detaches, with the rolled ``padding_mask`` that core >= 0.18 passes and unpacks.

    Returns:
        Ids, positions, mask (``[batch, sequence]``, bool, or None), embeddings and hidden states, as core has them.
    """
    own = type(self)._get_embeddings
    mask = inspect.signature(own).bind(self, *args, **kwargs).arguments.get("padding_mask")
    names = [name for name in inspect.signature(own).parameters if name not in ("self", "padding_mask")]
    arguments = {**dict(zip(names, args, strict=False)), **kwargs}
    arguments.pop("padding_mask", None)
    ids, positions, embedded, hidden = original(self, **arguments)
    if mask is not None:
        from megatron.core.transformer.multi_token_prediction import roll_tensor

        packed = arguments.get("packed_seq_params")
        mask, _ = roll_tensor(mask, shifts=-1, dims=-1, cp_group=self.cp_group, packed_seq_params=packed)
    return ids, positions, mask, embedded, hidden


def leave_checkpointing_to_core(original: Callable[..., bool], model: Any) -> bool:
    """``patch_mtp_layer_checkpointed_forward`` only where core's method still takes the function to checkpoint.

    From core 0.18 on core checkpoints tensors only, itself: verl has nothing to add (verl 0.9 leaves it alone too).

    Returns:
        Whether layers were patched.
    """
    from megatron.core.transformer.multi_token_prediction import MultiTokenPredictionLayer

    return original(model) if _takes(MultiTokenPredictionLayer._checkpointed_forward, "forward_func") else False


def lacks_loss_without_logits(module: ModuleType) -> bool:
    """Whether verl 0.7.1's copy asks a method of core's model that core has no more (since 0.16)."""
    return not hasattr(vars(module)["GPTModel"], "compute_output_layer_and_language_model_loss")


def with_loss_of_output_layer(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    """verl 0.7.1's ``_postprocess`` with the loss method that core dropped: output layer, then core's loss.

    core 0.17 also says whether it decodes speculatively, which is for inference and no matter of verl's copy.
    """
    kwargs.pop("is_spec_decode", None)

    def loss(hidden: Any, labels: Any, column_parallel_linear: Any, col_linear_kwargs: Any, **_unused: Any) -> Any:
        logits, _ = column_parallel_linear(hidden, **col_linear_kwargs)
        return self.compute_language_model_loss(labels, logits)

    return original(_StandIn(self, compute_output_layer_and_language_model_loss=loss), *args, **kwargs)


def embeddings_that_train(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    """verl 0.7.1's detached hidden states as a leaf that wants a gradient.

    Nothing else that goes into a recomputed MTP layer wants one, and then torch gives the layer's own weights none.
    """
    *others, hidden = original(self, *args, **kwargs)
    return (*others, hidden if hidden.requires_grad else hidden.requires_grad_())


# --- megatron.core.transformer.multi_token_prediction ----------------------------


def recompute_refuses_mask(module: ModuleType) -> bool:
    """Whether core's MTP layer passes a ``padding_mask`` that its ``_checkpointed_forward`` does not take (0.18)."""
    layer = vars(module)["MultiTokenPredictionLayer"]
    checkpointed = layer._checkpointed_forward
    return _takes(layer._proj_and_transformer_layer, "padding_mask") and not (
        _takes(checkpointed, "padding_mask") or _takes(checkpointed, "forward_func")
    )


def checkpoint_with_mask(
    original: Callable[..., Any], self: Any, *args: Any, padding_mask: Any = None, **kwargs: Any
) -> Any:
    """core 0.18's ``_checkpointed_forward`` with the mask that core's own ``forward`` passes.

    Core checkpoints a closure over the layer; it gets a stand-in of the layer that adds the mask, in the forward pass
    and when it is recomputed.

    Args:
        padding_mask: ``[batch, sequence]``, bool, True where padding is; or None.
    """
    if padding_mask is None:
        return original(self, *args, **kwargs)

    def project(*args: Any, **kwargs: Any) -> Any:
        return self._proj_and_transformer_layer(*args, padding_mask=padding_mask, **kwargs)

    return original(_StandIn(self, _proj_and_transformer_layer=project), *args, **kwargs)
