"""Makes unmodified megatron.core and megatron.bridge run on a CPU with gloo.

Everything here stands in for a GPU, never for code under test.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import queue
import sys
import tempfile
from pathlib import Path

STUBS = Path(__file__).resolve().parent.parent / "stubs"


def enable_stubs() -> bool:
    """Put the Transformer Engine stand-in on the path of this process and of its children.

    Call before megatron.bridge is imported.  Does nothing where the real package is installed.

    Returns:
        True when the stand-in is in use.
    """
    stubs = str(STUBS)
    if stubs not in sys.path and importlib.util.find_spec("transformer_engine") is not None:
        return False
    if stubs not in sys.path:
        sys.path.insert(0, stubs)
    inherited = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    if stubs not in inherited:
        os.environ["PYTHONPATH"] = os.pathsep.join([stubs, *inherited])
    if not getattr(sys, "_te_standin", False):
        spec = importlib.util.spec_from_file_location("te_standin_guard", STUBS / "sitecustomize.py")
        assert spec is not None
        assert spec.loader is not None
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    return True


def init_single_process(**parallel: int) -> None:
    """Start gloo with one rank and megatron's parallel state; idempotent.

    Args:
        **parallel: keywords of ``parallel_state.initialize_model_parallel``.
    """
    import torch
    from megatron.core import parallel_state

    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    if not torch.distributed.is_initialized():
        rendezvous = Path(tempfile.mkdtemp(prefix="gloo-")) / "store"
        torch.distributed.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=0, world_size=1)
    if not parallel_state.model_parallel_is_initialized():
        parallel_state.initialize_model_parallel(**parallel)


def shutdown() -> None:
    """Undo :func:`init_single_process`."""
    import torch
    from megatron.core import parallel_state

    if parallel_state.model_parallel_is_initialized():
        parallel_state.destroy_model_parallel()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


class NoStream:
    """A CUDA stream where work is done in order anyway."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        pass

    def wait_stream(self, stream: object) -> None:
        """Nothing to wait for."""

    def synchronize(self) -> None:
        """Nothing to wait for."""


def cpu_fixups() -> None:
    """Replace, in this process, what the upstreams do only on a GPU; idempotent.

        * ``torch.cuda.current_device`` names a CPU device, which has no memory to report; streams, synchronizing
          and moving modules do nothing;
        * PEFT code takes the layers of megatron.core for plain ones (no Transformer Engine);
        * ``dist.scatter`` sends contiguous copies: gloo sends wrong rows otherwise, without an error;
        * the RNG tracker forks nothing: its states are CUDA states;
    * saving a checkpoint starts no process: neither a manager for one queue nor a forked writer per file.

        Call after :func:`enable_stubs`.
    """
    import torch

    if getattr(torch.cuda.current_device, "_cpu_fixup", False):
        return

    def current_device() -> torch.device:
        return torch.device("cpu")

    current_device._cpu_fixup = True  # type: ignore[attr-defined]
    torch.cuda.current_device = current_device  # type: ignore[assignment]
    torch.cuda.synchronize = lambda device=None: None  # type: ignore[assignment]
    torch.cuda.mem_get_info = lambda device=None: (0, 0)  # type: ignore[assignment]
    torch.cuda.Stream = NoStream  # type: ignore[assignment,misc]
    torch.cuda.current_stream = NoStream  # type: ignore[assignment]
    torch.cuda.stream = lambda stream: contextlib.nullcontext()  # type: ignore[assignment]
    torch.nn.Module.cuda = lambda self, device=None: self  # type: ignore[method-assign]
    _contiguous_scatter()
    _no_rng_fork()
    _no_checkpoint_process()
    for name in ("utils", "module_matcher", "lora", "canonical_lora", "lora_layers", "dora"):
        with contextlib.suppress(ModuleNotFoundError):
            module = importlib.import_module(f"megatron.bridge.peft.{name}")
            if hasattr(module, "HAVE_TE"):
                module.HAVE_TE = False


def _contiguous_scatter() -> None:
    import torch.distributed as dist

    scatter = dist.scatter

    def contiguous_scatter(tensor, scatter_list=None, *args, **kwargs):
        if scatter_list is not None:
            scatter_list = [part.contiguous() for part in scatter_list]
        return scatter(tensor, scatter_list, *args, **kwargs)

    dist.scatter = contiguous_scatter


def _no_rng_fork() -> None:
    from megatron.core.tensor_parallel import random as core_random

    # Consumers bind the getter early, so the tracker object that it returns is changed.
    core_random.initialize_rng_tracker()
    core_random.get_cuda_rng_tracker().fork = lambda *args, **kwargs: contextlib.nullcontext()


def _no_checkpoint_process() -> None:
    from megatron.core.dist_checkpointing.strategies import filesystem_async

    filesystem_async._results_queue = queue.Queue()
    writer = filesystem_async.FileSystemWriterAsync
    if hasattr(writer, "write_preloaded_data_multiproc"):  # core 0.16 forks a writer per file
        writer.write_preloaded_data_multiproc = staticmethod(_write_in_this_process)


def _write_in_this_process(transforms, use_msc, rank, buckets, results_queue) -> None:
    from megatron.core.dist_checkpointing.strategies.filesystem_async import FileSystemWriterAsync

    written: queue.Queue = queue.Queue()
    todo: queue.Queue = queue.Queue()
    for index, bucket in enumerate(buckets):
        todo.put(index)
        FileSystemWriterAsync.write_preloaded_data(
            transforms, index, bucket, written, todo, use_fsync=False, use_msc=use_msc
        )
    results_queue.put(dict(written.get_nowait() for _ in buckets))
