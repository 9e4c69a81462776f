"""Which kind of adapter (LoRA) checkpoint a directory holds, and one clear error for the wrong kind.

verl 0.7 writes and reads one file per model-parallel rank (``mp_rank_00_adapter.pt``); verl 0.8
and newer a Megatron distributed checkpoint.  Neither names the other's format
(https://github.com/verl-project/verl/pull/6335 changed it).
"""

from __future__ import annotations

import inspect
import os
import re
from typing import Any

from verl_compat.shims.config_access import config_get

RANK_FILES = "per-rank .pt files (mp_rank_XX_adapter.pt, written by verl 0.7)"
DISTRIBUTED = "a Megatron distributed checkpoint (metadata.json and .metadata, written by verl 0.8 and newer)"
HUGGING_FACE = "a Hugging Face PEFT adapter (adapter_config.json)"

_RANK_FILE = re.compile(r"mp_rank_\d\d(_\d\d\d){0,2}_adapter\.pt")
_CONVERT = (
    "Convert it once, in a script that builds the model with the same tensor, pipeline and expert parallel sizes "
    "and the same LoRA settings: verl_compat.convert_adapter_checkpoint(model, source, target)"
)
_HOW = {
    RANK_FILES: _CONVERT,
    DISTRIBUTED: _CONVERT,
    HUGGING_FACE: "Megatron reads neither format from it: give the adapter that the trainer saved",
}


class AdapterFormatError(ValueError):
    """The adapter checkpoint is of a format that this verl does not read."""


def adapter_format(path: str) -> str | None:
    """:data:`RANK_FILES`, :data:`DISTRIBUTED`, :data:`HUGGING_FACE`, or None where it cannot be told."""
    try:
        names = set(os.listdir(path))
    except OSError:
        return None
    if names & {"metadata.json", ".metadata"}:
        return DISTRIBUTED
    if any(_RANK_FILE.fullmatch(name) for name in names):
        return RANK_FILES
    return HUGGING_FACE if "adapter_config.json" in names else None


def check_distributed_adapter(original: Any, *args: Any, **kwargs: Any) -> Any:
    """Wrap ``make_megatron_module`` of verl 0.8 and newer: look at ``adapter_path`` before the model is built.

    Raises:
        AdapterFormatError: it is there and holds another format than a distributed checkpoint.
    """
    try:
        given = inspect.signature(original).bind(*args, **kwargs).arguments
    except TypeError:
        return original(*args, **kwargs)  # upstream's own error for a wrong call
    if given.get("provider") is not None and given.get("peft_cls") is not None:
        refuse(config_get(given.get("peft_config"), "adapter_path"), reads=DISTRIBUTED)
    return original(*args, **kwargs)


def load_rank_adapter(original: Any, model: Any, checkpoint_path: str, *args: Any, **kwargs: Any) -> Any:
    """Wrap verl 0.7's ``load_adapter_checkpoint``.

    Raises:
        AdapterFormatError: the directory is there and holds no per-rank files.
    """
    refuse(checkpoint_path, reads=RANK_FILES)
    return original(model, checkpoint_path, *args, **kwargs)


def refuse(path: Any, reads: str) -> None:
    """Raise for a local directory of another format than this verl reads; leave the rest to upstream."""
    found = adapter_format(os.fspath(path)) if isinstance(path, (str, os.PathLike)) else None
    if found is not None and found != reads:
        raise AdapterFormatError(f"adapter_path {path} holds {found}, this verl reads {reads}. {_HOW[found]}")
