"""``load_fsdp_dtensor_checkpoint`` and ``save_fsdp_dtensor_checkpoint``, as Bridge has them from 0.5.0.

Bridge 0.4 has the loader under a private name, with the same parameters in another order;
Bridge 0.3's cannot be told which directory to read.  Saving exists nowhere before 0.5: it is
put together from Bridge's own preprocessing and torch's distributed checkpoint
(https://github.com/NVIDIA-NeMo/Megatron-Bridge/pull/3866).
"""

from __future__ import annotations

import inspect
import os
from typing import Any

from verl_compat.shims.checkpoint_files import CheckpointSaveError, beside, together

_PRIVATE_LOADER = "_load_fsdp_dtensor_base_checkpoint"


class MissingModelError(KeyError):
    """The state dict lacks an entry that Megatron-FSDP preprocessing needs."""

    def __str__(self) -> str:
        return str(self.args[0])


def load_fsdp_dtensor_checkpoint(
    load_dir: str,
    ckpt_cfg: Any,
    rank0: bool,
    sharded_state_dict: dict[str, Any] | None,
    iteration: int | None,
    release: bool = False,
    checkpoint_path_override: str | None = None,
    checkpointing_context: dict[str, Any] | None = None,
    cfg: Any = None,
) -> tuple[dict[str, Any], str, bool, Any]:
    """Load a Megatron-FSDP (DTensor) checkpoint into a state dict.

    Collective: every rank of the default group calls it.  All checks come before anything is
    read, and fail on all ranks alike.

    Args:
        load_dir: directory of the checkpoints.
        ckpt_cfg: its ``strict_fsdp_dtensor_load`` (default False) forbids partial loading.
        rank0: return an empty state dict: this format has no common part.
        sharded_state_dict: the template that is loaded into: ``model``, perhaps ``optimizer``
            and others, with DTensors, and ``_model``, a list of the one model chunk, which is removed.
        iteration, release: name the checkpoint below ``load_dir``, unless ``checkpoint_path_override`` does.
        checkpoint_path_override: the directory to read.
        checkpointing_context, cfg: handed to Bridge.

    Returns:
        State dict, directory, ``release``, checkpoint type.

    Raises:
        RuntimeError: Bridge 0.3, no Megatron-FSDP, or no template.
        KeyError: the template lacks ``_model`` or ``model``.
        FileNotFoundError: no checkpoint there.
    """
    from megatron.bridge.training import checkpointing

    private = getattr(checkpointing, _PRIVATE_LOADER, None)
    if private is None or "checkpoint_path_override" not in inspect.signature(private).parameters:
        raise RuntimeError(_cannot_load())
    if not rank0:
        _need_megatron_fsdp(checkpointing, "load")
        _check_template(sharded_state_dict)
        path = checkpoint_path_override
        if path is None:
            path = checkpointing.get_checkpoint_name(load_dir, iteration, release)
        _check_directory(str(path))
    loaded: tuple[dict[str, Any], str, bool, Any] = private(
        load_dir,
        ckpt_cfg,
        rank0=rank0,
        sharded_state_dict=sharded_state_dict,
        iteration=iteration,
        release=release,
        checkpoint_path_override=checkpoint_path_override,
        checkpointing_context=checkpointing_context,
        cfg=cfg,
    )
    return loaded


def save_fsdp_dtensor_checkpoint(
    checkpoint_path: str | os.PathLike[str],
    state_dict: dict[str, Any],
    *,
    cfg: Any,
    model: Any,
    storage_writer: Any = None,
    barrier: bool = True,
) -> Any:
    """Save a Megatron-FSDP (DTensor) checkpoint with torch's distributed checkpoint.

    Collective.  Written beside ``checkpoint_path`` and then moved there, so that a full disk
    costs nothing that was there before; a ``storage_writer`` of the caller's, and object
    storage, write where they want.

    Args:
        checkpoint_path: directory to write; files in it that belong to no checkpoint stay.
        state_dict: ``model`` and what else is to be saved; not changed.
        cfg: handed to Bridge's preprocessing.
        model: the model chunk, which says how fused weights are split.
        storage_writer: writes in place of torch's ``FileSystemWriter``.
        barrier: wait for all ranks before returning.

    Returns:
        What ``torch.distributed.checkpoint.save`` returns.

    Raises:
        RuntimeError: no Megatron-FSDP.
        KeyError: the state dict lacks ``model``.
        CheckpointSaveError: it could not be written.
    """
    import torch.distributed as dist
    from megatron.bridge.training import checkpointing
    from torch.distributed import checkpoint

    _need_megatron_fsdp(checkpointing, "save")
    if "model" not in state_dict:
        raise MissingModelError(
            f"a Megatron-FSDP checkpoint needs the entry 'model', the state dict has {sorted(state_dict)}: "
            "add 'model' to checkpoint.save_contents (the optimizer's layout is read from it)"
        )
    prepared = checkpointing.preprocess_fsdp_dtensor_state_dict(cfg, state_dict, model)
    if storage_writer is None:
        storage_writer = _object_storage_writer(str(checkpoint_path))
    if storage_writer is not None:
        result = checkpoint.save(state_dict=prepared, storage_writer=storage_writer)
    else:
        with beside(os.fspath(checkpoint_path)) as staging:
            result = checkpoint.save(state_dict=prepared, storage_writer=checkpoint.FileSystemWriter(staging))
    if barrier and dist.is_initialized():
        dist.barrier()
    return result


def _cannot_load() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        here = f"Megatron-Bridge {version('megatron-bridge')}"
    except PackageNotFoundError:
        here = "this Megatron-Bridge"
    return (
        f"{here} cannot load a Megatron-FSDP checkpoint from a given directory (its loader takes no path; "
        "added in 0.4.0); nothing was read. Install megatron-bridge>=0.4 to resume from this checkpoint, or "
        "train without Megatron-FSDP (use_megatron_fsdp=False)"
    )


def _need_megatron_fsdp(checkpointing: Any, verb: str) -> None:
    if not getattr(checkpointing, "HAVE_MEGATRON_FSDP", False):
        raise RuntimeError(
            f"cannot {verb} a Megatron-FSDP checkpoint: this megatron-core has no usable Megatron-FSDP "
            "(megatron.core.distributed.fsdp did not import). Install a megatron-core that fits this "
            "megatron-bridge, or train without it (use_megatron_fsdp=False)"
        )


def _check_template(template: dict[str, Any] | None) -> None:
    if template is None:
        raise RuntimeError("a Megatron-FSDP checkpoint is loaded into a template: pass sharded_state_dict, got None")
    for name, what in (("_model", "a list of the one model chunk"), ("model", "the model's DTensors")):
        if not template.get(name):
            raise MissingModelError(
                f"sharded_state_dict lacks {name!r} ({what}); it has {sorted(template)}. Nothing was read"
            )


def _check_directory(path: str) -> None:
    """On all ranks or on none: a rank that alone gives up leaves the others waiting."""
    trouble = None
    if "://" not in path and not os.path.isfile(os.path.join(path, ".metadata")):
        if not os.path.isdir(path):
            trouble = f"there is no directory {path}"
        else:
            found = ", ".join(sorted(os.listdir(path))[:5]) or "nothing"
            trouble = f"{path} holds no torch distributed checkpoint (no file .metadata; it holds {found})"
    missing = {rank: text for rank, text in enumerate(together(trouble)) if text}
    if missing:
        raise FileNotFoundError(
            f"Megatron-FSDP checkpoint not found: {next(iter(missing.values()))}, "
            f"seen so by rank {', '.join(map(str, missing))}. Expected what save_fsdp_dtensor_checkpoint "
            "wrote, on storage that every rank can read"
        )


def _object_storage_writer(path: str) -> Any:
    """Bridge 0.5 writes through Multi-Storage Client where that is switched on."""
    from megatron.core.msc_utils import MultiStorageClientFeature

    if not MultiStorageClientFeature.is_enabled():
        return None
    from multistorageclient.contrib.torch.filesystem import (  # type: ignore[import-not-found,unused-ignore]
        MultiStorageFileSystemWriter,
    )

    return MultiStorageFileSystemWriter(path)


__all__ = [
    "CheckpointSaveError",
    "MissingModelError",
    "load_fsdp_dtensor_checkpoint",
    "save_fsdp_dtensor_checkpoint",
]
