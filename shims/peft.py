"""PEFT helpers for trainers outside Bridge, as megatron.bridge.peft.utils has them from 0.5.0."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from verl_compat.shims.chunks import as_chunk_list

ModelHook = Callable[[Any], Any]

PEFT_TYPES: Mapping[str, tuple[str, str]] = {
    "lora": ("megatron.bridge.peft.lora", "LoRA"),
    "vlm_lora": ("megatron.bridge.peft.lora", "VLMLoRA"),
    "canonical_lora": ("megatron.bridge.peft.canonical_lora", "CanonicalLoRA"),
    "dora": ("megatron.bridge.peft.dora", "DoRA"),
}
DTYPE_NAMES: Mapping[str, str] = {
    **dict.fromkeys(("32", "32-true", "fp32", "float32"), "float32"),
    **dict.fromkeys(("16", "16-mixed", "fp16", "float16"), "float16"),
    **dict.fromkeys(("bf16", "bf16-mixed", "bfloat16"), "bfloat16"),
    **dict.fromkeys(("fp8", "float8_e4m3fn"), "float8_e4m3fn"),
    "float8_e5m2": "float8_e5m2",
}
"""The dtype names that Bridge takes, with or without ``torch.`` before them."""


def create_peft(config: Mapping[str, Any], dtype: Any = None) -> Any:
    """Make Bridge's PEFT object from a mapping (Bridge PR #3813).

    Args:
        config: a dict or DictConfig.  ``type`` is one of :data:`PEFT_TYPES` (default ``lora``); ``rank``
            is another name of ``dim`` and wins over it; ``lora_dtype``, else ``dtype``, sets the adapter's
            dtype.  Keys that the PEFT class does not have (``adapter_path``, ``merge``) are dropped.
        dtype: dtype of the adapter where ``config`` names none: a ``torch.dtype`` or its name.

    Returns:
        The PEFT object, or None when the rank is not positive.

    Raises:
        ValueError: unknown ``type`` or dtype.
        TypeError: the rank is None.
        ImportError: Bridge's PEFT code needs Transformer Engine, and it is not installed.
    """
    values = dict(config)
    kind = values.pop("type", "lora")
    if "rank" in values:
        values["dim"] = values.pop("rank")
    dim = values.get("dim", 0)
    if dim is None:
        raise TypeError("PEFT rank is None: give 'rank' (or 'dim') an integer, 0 for no PEFT")
    if dim <= 0:
        return None
    peft_class = _peft_class(kind)
    known = {item.name for item in fields(peft_class) if item.init}
    named_dtype = values.pop("dtype", None)
    lora_dtype = values.pop("lora_dtype", dtype if named_dtype is None else named_dtype)
    if lora_dtype is not None and "lora_dtype" in known:
        values["lora_dtype"] = _as_dtype(lora_dtype)
    return peft_class(**{name: value for name, value in values.items() if name in known})


def create_peft_hook(peft: Any, training: bool = True) -> ModelHook:
    """Pre-wrap hook that puts the adapters in and marks their parameters for checkpoints (Bridge PR #3813).

    Args:
        peft: from :func:`create_peft`.
        training: leave the adapters trainable.

    Returns:
        A hook that returns what ``peft`` returns: the list of model chunks for a list.
    """

    def hook(model: Any) -> Any:
        transformed = peft(model, training=training)
        peft.set_params_to_save(transformed)
        return transformed

    return hook


def load_peft_adapter_checkpoint(
    model: Any,
    adapter_checkpoint_path: Any,
    peft: Any,
    strict: bool = False,
    model_sd_kwargs: Mapping[str, object] | None = None,
    ckpt_format: str = "torch_dist",
    pg_collection: Any = None,
    fully_parallel_load: bool = True,
    load_strategy: Any = None,
) -> None:
    """Load the adapters of a megatron *distributed* checkpoint into a model that has them (Bridge PR #3813).

    Args:
        model: a module or the list of model chunks, already transformed by ``peft``.
        adapter_checkpoint_path: folder of the checkpoint (not a Hugging Face adapter).
        peft: the PEFT object; tells which parameters are adapters.
        strict: of ``load_state_dict``; base weights are never in such a checkpoint.
        model_sd_kwargs: keywords of each chunk's ``sharded_state_dict``.
        ckpt_format: ``torch_dist`` asks each chunk for its sharded state dict.
        pg_collection: process groups; by default those of megatron's parallel state.
        fully_parallel_load: let data-parallel ranks read a part each and exchange.
        load_strategy: a megatron.core load strategy, used as it is.

    Raises:
        KeyError: no section of the checkpoint is for a model chunk (``model``, or ``model0`` ... under
            virtual pipelining).
    """
    from megatron.bridge.training.checkpointing import (
        _generate_model_state_dict,
        apply_peft_adapter_filter_to_state_dict,
    )
    from megatron.core import dist_checkpointing

    chunks = as_chunk_list(model)
    sections = _generate_model_state_dict(chunks, dict(model_sd_kwargs or {}), ckpt_format, pg_collection=pg_collection)
    wanted = _without_extra_state(apply_peft_adapter_filter_to_state_dict(sections, peft))
    path = str(adapter_checkpoint_path)
    strategy = load_strategy or _load_strategy(path, pg_collection, fully_parallel_load)
    loaded = dist_checkpointing.load(wanted, path, strategy)
    for index, chunk in enumerate(chunks):
        chunk.load_state_dict(_section_of(loaded, index, len(chunks)), strict=strict)


def _peft_class(kind: str) -> Any:
    if kind not in PEFT_TYPES:
        raise ValueError(f"unknown PEFT type {kind!r}: expected one of {', '.join(sorted(PEFT_TYPES))}")
    home, name = PEFT_TYPES[kind]
    try:
        return getattr(importlib.import_module(home), name)
    except ImportError as error:
        raise ImportError(
            f"PEFT type {kind!r}: cannot import {home} ({error}). "
            "Bridge's LoRA code needs Transformer Engine: install megatron-bridge with its [te] extra.",
            name=error.name,
        ) from error


def _as_dtype(value: Any) -> Any:
    import torch

    name = DTYPE_NAMES.get(str(value).lower().removeprefix("torch."))
    if name is None:
        raise ValueError(f"unknown adapter dtype {value!r}: expected one of {', '.join(sorted(DTYPE_NAMES))}")
    return getattr(torch, name)


def _without_extra_state(sections: Mapping[str, Any]) -> dict[str, Any]:
    """Drop Transformer Engine's ``_extra_state`` of adapters.

    Bridge saves none from 0.5 on, and a name that the checkpoint lacks fails the load.
    """
    return {
        section: {name: value for name, value in content.items() if "_extra_state" not in name}
        if section.startswith("model") and isinstance(content, Mapping)
        else content
        for section, content in sections.items()
    }


def _load_strategy(path: str, pg_collection: Any, fully_parallel: bool) -> Any:
    from megatron.core.dist_checkpointing.serialization import get_default_load_sharded_strategy
    from megatron.core.dist_checkpointing.strategies.fully_parallel import FullyParallelLoadStrategyWrapper

    strategy = get_default_load_sharded_strategy(path)
    if not fully_parallel:
        return strategy
    groups = pg_collection if pg_collection is not None else _process_groups()
    group = getattr(groups, "dp_cp", None)
    return strategy if group is None else FullyParallelLoadStrategyWrapper(strategy, group)


def _process_groups() -> Any:
    from megatron.core.process_groups_config import ProcessGroupCollection

    try:
        return ProcessGroupCollection.use_mpu_process_groups(required_pgs=["dp_cp"])
    except AssertionError:  # parallel state is not initialized
        return None


def _section_of(loaded: Mapping[str, Any], index: int, chunks: int) -> Any:
    """The section of one chunk; a lone chunk also takes the first ``model*`` section that there is."""
    expected = ["model"] if chunks == 1 else [f"model{chunk}" for chunk in range(chunks)]
    name = expected[index]
    if name not in loaded and chunks == 1:
        name = next((key for key in loaded if key.startswith("model")), name)
    if name not in loaded:
        raise KeyError(
            f"adapter checkpoint has no section {name!r} for model chunk {index}: expected {expected}, "
            f"found {list(loaded)}; was it saved with another virtual pipeline size?"
        )
    return loaded[name]
