"""Model chunks: what megatron calls the list of modules that a rank holds under virtual pipelining."""

from __future__ import annotations

from typing import Any


def as_chunk_list(model: Any) -> list[Any]:
    """The list itself, or a list of the one module."""
    return model if isinstance(model, list) else [model]
