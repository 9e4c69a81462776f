"""Writing a checkpoint directory so that what was there before survives any failure."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class CheckpointSaveError(RuntimeError):
    """A checkpoint could not be written; what was there before is untouched."""


def together(value: Any) -> list[Any]:
    """``value`` of every rank of the default group, by rank; only this one's without a group."""
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return [value]
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


@contextmanager
def beside(path: str) -> Iterator[str]:
    """A directory beside ``path`` to write to; it takes the place of ``path`` at the end.

    Collective over the default group.  One rank per host moves directories, so that it works
    on shared storage and on local disks alike; twice the space is needed while an existing
    checkpoint is overwritten.

    Raises:
        CheckpointSaveError: on all ranks alike; ``path`` is as it was.
    """
    path = os.path.abspath(path)
    staging = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.saving")
    leads = _leads_its_host()
    _on_leaders(leads, lambda: _fresh(staging, path), path)
    try:
        yield staging
    except BaseException as error:  # torch's CheckpointException is no Exception
        if leads:
            shutil.rmtree(staging, ignore_errors=True)
        if isinstance(error, (KeyboardInterrupt, SystemExit, GeneratorExit)):
            raise
        raise CheckpointSaveError(_not_saved(path, _root_cause(error))) from error
    _on_leaders(leads, lambda: _take_place(staging, path), path)


def _leads_its_host() -> bool:
    hosts = together(socket.gethostname())
    rank = _rank()
    return hosts.index(hosts[rank]) == rank


def _rank() -> int:
    import torch.distributed as dist

    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def _on_leaders(leads: bool, action: Callable[[], None], path: str) -> None:
    """Rank 0 first, then the other hosts' leaders: on shared storage they find nothing to do."""
    for turn in (_rank() == 0, leads and _rank() != 0):
        trouble = None
        if turn:
            try:
                action()
            except OSError as error:
                trouble = str(error)
        failed = next((text for text in together(trouble) if text), None)
        if failed is not None:
            raise CheckpointSaveError(_not_saved(path, failed))


def _fresh(staging: str, path: str) -> None:
    """An empty directory, whatever an earlier save that was killed left behind."""
    if os.path.isdir(f"{staging}.old") and not os.path.exists(path):
        os.replace(f"{staging}.old", path)  # it was killed between two moves
    if os.path.isdir(staging) and os.listdir(staging):
        shutil.rmtree(staging)
    os.makedirs(staging, exist_ok=True)


def _take_place(staging: str, path: str) -> None:
    """Move ``staging`` to ``path``; of an old checkpoint there, only foreign files stay."""
    if not os.path.isdir(staging):
        return  # another host's leader has moved it: shared storage
    if not os.path.isdir(path) or not os.listdir(path):
        os.replace(staging, path)
        return
    old = f"{staging}.old"
    shutil.rmtree(old, ignore_errors=True)
    os.replace(path, old)
    try:
        os.replace(staging, path)
    except OSError:
        os.replace(old, path)
        raise
    for name in os.listdir(old):
        if not _is_checkpoint_file(name) and not os.path.lexists(os.path.join(path, name)):
            os.replace(os.path.join(old, name), os.path.join(path, name))
    shutil.rmtree(old, ignore_errors=True)


def _is_checkpoint_file(name: str) -> bool:
    return name == ".metadata" or name.endswith((".distcp", ".metadata.tmp"))


def _root_cause(error: BaseException) -> str:
    """The reason inside torch's CheckpointException, with the ranks that had it."""
    failures = getattr(error, "failures", None)
    if isinstance(failures, dict) and failures:
        texts = {rank: str(what[0] if isinstance(what, tuple) else what) for rank, what in failures.items()}
        first = next(iter(texts.values()))
        return f"rank {', '.join(str(rank) for rank in texts)}: {first}"
    return f"{type(error).__name__}: {error}"


def _not_saved(path: str, reason: str) -> str:
    return (
        f"the checkpoint was not saved to {path}: {reason}. What was there before is untouched. "
        "Free space on that file system (overwriting needs room for both) or save elsewhere"
    )
