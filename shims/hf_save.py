"""Hugging Face saves of Bridge before 0.6 write every tensor that they are given, and say what they were not given.

Bridge 0.3.1 to 0.5.1 write a file only when all tensors that the source has in it were exported.  A model built
without MTP, or one tensor without a mapping, so costs every other tensor of that file; 0.6 counts MTP tensors out
where the model has none, raises where anything else is missing, and indexes what is on disk (Megatron-Bridge PR
#4188).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verl_compat.shims.notices import say_once

_omitted: ContextVar[tuple[str, ...]] = ContextVar("verl_compat_omitted_prefixes", default=())
_INDEX = "model.safetensors.index.json"


@dataclass
class Shards:
    """A save in progress, laid out as the source is.

    Attributes:
        place: tensor name to file name, as in the source.
        waiting: per file, the names that have not come yet.
        held: per file that is not complete, the tensors that have come (the saver holds them too).
        sizes: bytes of each tensor that has come and has a place.
    """

    place: dict[str, str]
    waiting: dict[str, set[str]] = field(default_factory=dict)
    held: dict[str, dict[str, Any]] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    keep: bool = True

    def __post_init__(self) -> None:
        for name, file in self.place.items():
            self.waiting.setdefault(file, set()).add(name)

    def watch(self, items: Iterator[Any]) -> Iterator[Any]:
        """Pass ``(name, tensor)`` pairs on; tensors of files that never become complete stay at hand."""
        for item in items:
            name, tensor = item[0], item[1]
            file = self.place.get(name)
            if file is not None:
                self.sizes[name] = tensor.numel() * tensor.element_size()
                self.waiting[file].discard(name)
                if not self.waiting[file]:
                    self.held.pop(file, None)  # complete: the saver writes it now
                elif self.keep:
                    self.held.setdefault(file, {})[name] = tensor
            yield item

    def missing(self) -> list[str]:
        """Names of the source that did not come, without those that the model is known to be built without."""
        prefixes = _omitted.get()
        names = (name for names in self.waiting.values() for name in names)
        return sorted(name for name in names if not (prefixes and name.startswith(prefixes)))


def note_what_the_model_omits(
    original: Callable[..., Any], bridge: Any, model: Any, path: Any, *args: Any, **kwargs: Any
) -> Any:
    """Around ``AutoBridge.save_hf_weights``: a model without MTP layers has no tensors of theirs to give."""
    chunk = model[0] if isinstance(model, (list, tuple)) and model else model
    token = _omitted.set(mtp_prefixes(bridge, getattr(chunk, "config", None)))
    try:
        return original(bridge, model, path, *args, **kwargs)
    finally:
        _omitted.reset(token)


def mtp_prefixes(bridge: Any, model_config: Any) -> tuple[str, ...]:
    """What MTP tensors are called in Hugging Face checkpoints; nothing where the model has MTP layers.

    ``mtp.`` (Qwen, MiMo-style ``model.mtp_layers.``), and one decoder layer past the last (DeepSeek, GLM).
    """
    if not hasattr(model_config, "mtp_num_layers") or model_config.mtp_num_layers:
        return ()
    config = getattr(bridge.hf_pretrained, "config", bridge.hf_pretrained)
    layers = getattr(config, "num_hidden_layers", None)
    if layers is None:
        layers = getattr(getattr(config, "text_config", None), "num_hidden_layers", None)
    past = () if not isinstance(layers, int) else (f"model.layers.{layers}.",)
    return ("mtp.", "model.mtp.", "model.mtp_layers.", *past)


def save_all(
    original: Callable[..., Any],
    source: Any,
    generator: Any,
    output_path: Any,
    strict: bool = True,
    distributed_save: bool = False,
    *args: Any,
    **kwargs: Any,
) -> None:
    """Around ``SafeTensorsStateSource.save_generator`` of Bridge before 0.6.

    Every rank sees every name, so in strict mode all of them raise.

    Raises:
        RuntimeError: in strict mode, when tensors of the source were not exported; everything that was exported is
            on disk by then, under an index that names exactly that.
    """
    shards = Shards(dict(source.key_to_filename_map or {}), keep=not distributed_save and _writes())
    rest = (distributed_save, *args) if distributed_save or args else ()
    original(source, shards.watch(generator), output_path, strict, *rest, **kwargs)
    if not shards.place:
        return
    if _writes():
        folder = Path(output_path)
        if strict and not distributed_save:
            _write_partial(folder, shards)
        if any(shards.waiting.values()):
            _write_index(folder, source, shards)
    _say(shards.missing(), len(shards.place), output_path, strict)


def _write_partial(folder: Path, shards: Shards) -> None:
    """The files that upstream leaves out because some of their tensors did not come."""
    from safetensors.torch import save_file

    for file, tensors in shards.held.items():
        target = folder / file
        target.parent.mkdir(parents=True, exist_ok=True)
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, target)
    shards.held.clear()


def _write_index(folder: Path, source: Any, shards: Shards) -> None:
    """An index of what is on disk, where the source has one."""
    origin = Path(source.path) / _INDEX
    if not origin.exists():
        return
    metadata = dict(json.loads(origin.read_text()).get("metadata", {}))
    metadata["total_size"] = sum(shards.sizes.values())
    weight_map = {name: shards.place[name] for name in sorted(shards.sizes)}
    (folder / _INDEX).write_text(json.dumps({"metadata": metadata, "weight_map": weight_map}, indent=4))


def _say(missing: list[str], total: int, folder: Any, strict: bool) -> None:
    if not missing:
        return
    names = ", ".join(missing[:20]) + (f" and {len(missing) - 20} more" if len(missing) > 20 else "")
    text = f"{len(missing)} of {total} tensors of the source checkpoint were not exported to {folder}: {names}"
    if strict:
        raise RuntimeError(f"{text}. Everything else is on disk; save with strict=False where that is meant")
    say_once("bridge_lt_0_6_save_every_tensor", f"{text}. They are in no file and not in the index")


def _writes() -> bool:
    import torch.distributed as dist

    return not (dist.is_available() and dist.is_initialized()) or int(dist.get_rank()) == 0
