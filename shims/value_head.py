"""Value models: the head and its hooks, as megatron.bridge.training.utils.train_utils has them from 0.5.0.

The class needs torch at its definition, so it is made on first use: :func:`linear_for_last_layer`, or
the attribute ``LinearForLastLayer`` of this module.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from verl_compat.shims.chunks import as_chunk_list

if TYPE_CHECKING:
    LinearForLastLayer: Any

ModelHook = Callable[[Any], Any]


@functools.cache
def linear_for_last_layer() -> Any:
    """The class ``LinearForLastLayer``; the same object on every call."""
    import torch

    class LinearForLastLayer(torch.nn.Linear):  # type: ignore[misc]  # torch is not followed by mypy
        """Replicated projection in place of a model's output layer (Bridge PR #3813).

        Called as megatron.core calls its output layer; returns ``(output, None)``.

        Args:
            input_size: hidden size.
            output_size: number of values per token.
            sequence_parallel: the input is sharded along the sequence; the output is gathered.
        """

        def __init__(self, input_size: int, output_size: int, sequence_parallel: bool) -> None:
            super().__init__(input_size, output_size, bias=False)
            self.sequence_parallel = sequence_parallel
            if sequence_parallel:
                # Read by megatron's all-reduce of the gradients of sequence-parallel parameters.
                self.weight.sequence_parallel = True

        def forward(
            self, input_: Any, weight: Any = None, runtime_gather_output: bool | None = None
        ) -> tuple[Any, None]:
            """Project [sequence, batch, hidden] to fp32 [sequence, batch, output_size]."""
            output = super().forward(input_).float()
            if self.sequence_parallel:
                from megatron.core.tensor_parallel import gather_from_sequence_parallel_region

                # Every tensor-parallel rank computes the same loss, so the gradient is split, not reduced.
                output = gather_from_sequence_parallel_region(output, tensor_parallel_output_grad=False)
            return output, None

    LinearForLastLayer.__module__ = __name__
    LinearForLastLayer.__qualname__ = "LinearForLastLayer"  # importable, so that it can be pickled
    return LinearForLastLayer


def __getattr__(name: str) -> Any:
    if name == "LinearForLastLayer":
        return linear_for_last_layer()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def create_value_head_hook(hidden_size: int, sequence_parallel: bool, output_size: int = 1) -> ModelHook:
    """Pre-wrap hook that puts a value head on the last pipeline stage (Bridge PR #3813).

    Args:
        hidden_size: width of the model's last hidden state.
        sequence_parallel: as in :class:`LinearForLastLayer`.
        output_size: number of values per token.

    Returns:
        A hook that takes a module or the list of model chunks and returns the list.  It raises
        ValueError when the number of chunks is not the number of virtual pipeline stages.
    """
    _register_as_replicated()

    def hook(model: Any) -> list[Any]:
        chunks = as_chunk_list(model)
        is_last = _is_last_stage_per_chunk()
        if len(is_last) != len(chunks):
            raise ValueError(
                f"value head: got {len(chunks)} model chunks, but this rank has {len(is_last)} pipeline "
                "stages; pass the whole list of chunks, as get_model builds it"
            )
        head = linear_for_last_layer()
        for chunk, last in zip(chunks, is_last, strict=True):
            if last:
                chunk.output_layer = head(
                    input_size=hidden_size, output_size=output_size, sequence_parallel=sequence_parallel
                )
        return chunks

    return hook


def make_value_model(hidden_size: int, sequence_parallel: bool) -> ModelHook:
    """Pre-wrap hook for a value model with one value per token; see :func:`create_value_head_hook`."""
    return create_value_head_hook(hidden_size=hidden_size, sequence_parallel=sequence_parallel)


def chain_value_model(original: Callable[..., ModelHook], *args: Any, **kwargs: Any) -> ModelHook:
    """Wrapper for a ``make_value_model`` whose hook returns None: the new hook returns the chunks.

    Bridge calls pre-wrap hooks one on the other's result, so None makes the next one (freezing the
    router) do nothing.  A result other than None is passed on untouched.
    """
    inner = original(*args, **kwargs)

    @functools.wraps(inner)
    def hook(model: Any) -> Any:
        result = inner(model)
        return as_chunk_list(model) if result is None else result

    return hook


def has_own_value_model(module: Any) -> bool:
    """Feature test: the module defines ``make_value_model`` itself instead of importing it."""
    function = vars(module).get("make_value_model")
    return bool(getattr(function, "__module__", None) == module.__name__)


def _is_last_stage_per_chunk() -> list[bool]:
    from megatron.core import parallel_state

    stages = parallel_state.get_virtual_pipeline_model_parallel_world_size()
    if stages is None or parallel_state.get_pipeline_model_parallel_world_size() == 1:
        return [parallel_state.is_pipeline_last_stage()]
    return [parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=stage) for stage in range(stages)]


def _register_as_replicated() -> None:
    """Bridge looks a module's parallelism up by its class name, and refuses a name that it does not know."""
    from megatron.bridge.models.conversion.param_mapping import AutoMapping

    AutoMapping.register_module_type("LinearForLastLayer", "replicated")
