"""After a load of Hugging Face weights: checkpoint names that nothing read, parameters that nothing filled."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from verl_compat import integrity
from verl_compat.shims.check.tensor_files import some

CHECK = "check_hf_load"
# buffers and companions of quantised weights that old checkpoints carry: no parameter is made from them alone
_NO_WEIGHT = re.compile(r"(rotary_emb\.inv_freq|\.masked_bias|attn\.bias|position_ids|_scale_inv|_scales?|_blocks)$")
_ADAPTER = re.compile(r"\.(adapter|lora_a|lora_b|lora_[AB])\.|_quantizer\.|\.adapter_")


@dataclass
class Load:
    """One load in progress: tasks that it went through, and checkpoint names that it read on this rank."""

    tasks: list[Any] = field(default_factory=list)
    read: set[str] = field(default_factory=set)


_loading: ContextVar[Load | None] = ContextVar("verl_compat_loading", default=None)


def note_tasks(original: Callable[..., Any], bridge: Any, tasks: Any, *args: Any, **kwargs: Any) -> Any:
    """Around ``MegatronModelBridge._with_progress_tracking``: the conversion tasks that a load walks through."""
    load = _loading.get()
    if load is None:
        return original(bridge, tasks, *args, **kwargs)
    tasks = list(tasks)
    load.tasks.extend(tasks)
    return original(bridge, tasks, *args, **kwargs)


def note_reads(original: Callable[..., Any], source: Any, keys: Iterable[str], *args: Any, **kwargs: Any) -> Any:
    """Around ``SafeTensorsStateSource.load_tensors``: the checkpoint names that a load reads."""
    load = _loading.get()
    if load is None:
        return original(source, keys, *args, **kwargs)
    keys = list(keys)
    load.read.update(keys)
    return original(source, keys, *args, **kwargs)


def check_load(
    original: Callable[..., Any], bridge: Any, hf_pretrained: Any, model: Any, *args: Any, **kwargs: Any
) -> Any:
    """Around ``MegatronModelBridge.load_weights_hf_to_megatron``."""
    load = Load()
    token = _loading.set(load)
    try:
        result = original(bridge, hf_pretrained, model, *args, **kwargs)
    finally:
        _loading.reset(token)
    integrity.look(CHECK, compare, load, hf_pretrained, model)
    return result


def compare(load: Load, hf_pretrained: Any, model: Any) -> None:
    """Tell names that nothing consumed, and parameters that nothing filled, of one finished load."""
    names = set(hf_pretrained.state.keys())
    chunks = model if isinstance(model, list) else [model]
    consumed = load.read | _mapped(load.tasks)
    unread = {name for name in names - consumed if not _NO_WEIGHT.search(name)}
    if _tied(hf_pretrained):
        unread -= {name for name in unread if name.endswith("lm_head.weight")}
    unfilled = _unfilled(load.tasks, chunks)
    integrity.note(
        CHECK,
        checkpoint=len(names),
        read_here=len(load.read),
        nothing_consumed=sorted(unread),
        nothing_filled=sorted(unfilled),
    )
    origin = getattr(hf_pretrained, "model_name_or_path", "the checkpoint")
    if unfilled:
        integrity.tell(
            CHECK,
            f"{len(unfilled)} parameters were not filled from {origin} and keep their initial values: {some(unfilled)}."
            " Right for a head that is trained from scratch; anything else trains from noise",
        )
    if unread:
        integrity.tell(
            CHECK,
            f"{len(unread)} of {len(names)} tensors of {origin} were read by nothing: {some(unread)}. Right where the "
            "model is built without them (MTP off, a tower left out); a save will not have them either",
        )


def _mapped(tasks: list[Any]) -> set[str]:
    """All checkpoint names that the tasks of all ranks stand for."""
    found: set[str] = set()
    for task in tasks:
        names = getattr(getattr(task, "mapping", None), "hf_param", None)
        if isinstance(names, str):
            found.add(names)
        elif isinstance(names, dict):
            found.update(name for name in names.values() if isinstance(name, str))
    return found


def _unfilled(tasks: list[Any], chunks: list[Any]) -> set[str]:
    """Parameters of this rank that no task writes to; adapters and quantizers are no part of a checkpoint."""
    filled = {id(task.param_weight) for task in tasks if getattr(task, "param_weight", None) is not None}
    names: set[str] = set()
    for chunk in chunks:
        for name, parameter in chunk.named_parameters():
            if id(parameter) not in filled and not _ADAPTER.search(f".{name}") and not _shared(chunk, name, parameter):
                names.add(name)
    return names


def _shared(chunk: Any, name: str, parameter: Any) -> bool:
    """Whether it is the copy of the tied embedding, which Bridge broadcasts after the load."""
    return bool(getattr(parameter, "shared_embedding", False)) or (
        name.endswith(("output_layer.weight", "embedding.word_embeddings.weight"))
        and bool(getattr(_inner(chunk), "share_embeddings_and_output_weights", False))
    )


def _inner(module: Any) -> Any:
    while hasattr(module, "module"):
        module = module.module
    return getattr(module, "language_model", module)


def _tied(hf_pretrained: Any) -> bool:
    config = getattr(hf_pretrained, "config", None)
    nested = getattr(config, "text_config", None)
    return any(bool(getattr(part, "tie_word_embeddings", False)) for part in (config, nested))
