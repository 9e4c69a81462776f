"""Convert an adapter checkpoint between verl 0.7's per-rank files and the distributed format of 0.8."""

from __future__ import annotations

import os
from typing import Any

from verl_compat.shims.adapter_formats import DISTRIBUTED, RANK_FILES, AdapterFormatError, adapter_format
from verl_compat.shims.checkpoint_files import together


def convert_adapter_checkpoint(model: Any, source: str, target: str) -> str:
    """Load an adapter into a model and save it in the other format.

    Collective over the default group, in a script that has built the model with its adapters
    and with the same tensor, pipeline and expert parallel sizes as the run that saved it.

    Args:
        model: the model chunk with adapters, or a list of the one chunk; it keeps the loaded adapter.
        source: directory in either format.
        target: directory to write; made if missing, and empty.

    Returns:
        The format that was written.

    Raises:
        AdapterFormatError: the source is in neither format, or does not fit the model.
        NotImplementedError: virtual pipeline chunks, of which verl 0.7 saved the first only.
    """
    chunks = list(model) if isinstance(model, (list, tuple)) else [model]
    if len(chunks) != 1:
        raise NotImplementedError(
            f"got {len(chunks)} model chunks: verl 0.7 saved the adapters of the first virtual pipeline chunk only, "
            "so that nothing complete can be converted. Train with virtual_pipeline_model_parallel_size=None"
        )
    chunk = _unwrapped(chunks[0])
    kinds = {adapter_format(source) for source in together(source)}
    if _agreed(os.path.isdir(target) and os.listdir(target)):
        raise AdapterFormatError(f"target {target} is not empty: give a new directory")
    if kinds == {RANK_FILES}:
        _load_rank_file(chunk, source)
        _save_distributed(chunk, target)
        return DISTRIBUTED
    if kinds == {DISTRIBUTED}:
        _load_distributed(chunk, source)
        _save_rank_file(chunk, target)
        return RANK_FILES
    raise AdapterFormatError(f"{source} holds neither {RANK_FILES} nor {DISTRIBUTED}")


def rank_file(directory: str) -> str:
    """This rank's file, as verl 0.7 names it."""
    from megatron.core import parallel_state as mpu

    name = f"mp_rank_{mpu.get_tensor_model_parallel_rank():02d}"
    if mpu.get_pipeline_model_parallel_world_size() > 1:
        name += f"_{mpu.get_pipeline_model_parallel_rank():03d}"
    if mpu.get_expert_model_parallel_world_size() > 1:
        name += f"_{mpu.get_expert_model_parallel_rank():03d}"
    return os.path.join(directory, f"{name}_adapter.pt")


def _unwrapped(chunk: Any) -> Any:
    while hasattr(chunk, "module"):  # DDP, Float16Module
        chunk = chunk.module
    return chunk


def _agreed(value: Any) -> bool:
    return any(together(bool(value)))


def _adapters(chunk: Any) -> dict[str, Any]:
    return {name: value for name, value in chunk.named_parameters() if ".adapter." in name.lower()}


def _load_rank_file(chunk: Any, source: str) -> None:
    import torch

    file = rank_file(source)
    own = _adapters(chunk)
    trouble, saved = None, {}
    if os.path.isfile(file):
        saved = torch.load(file, map_location="cpu", weights_only=True).get("adapter_state_dict", {})
        trouble = _mismatch(own, saved)
    else:
        trouble = f"there is no {file}: use the parallel sizes of the run that saved it"
    _raise_together(trouble)
    with torch.no_grad():
        for name, value in saved.items():
            own[name].copy_(value)


def _mismatch(own: dict[str, Any], saved: dict[str, Any]) -> str | None:
    if own.keys() != saved.keys():
        differ = sorted(own.keys() ^ saved.keys())
        return f"{len(differ)} adapter names of model and checkpoint differ, such as {differ[0]}"
    wrong = [name for name in own if own[name].shape != saved[name].shape]
    if wrong:
        name = wrong[0]
        return f"{name} has shape {tuple(own[name].shape)} in the model and {tuple(saved[name].shape)} on disk"
    return None


def _raise_together(trouble: str | None) -> None:
    texts = {rank: text for rank, text in enumerate(together(trouble)) if text}
    if texts:
        rank, text = next(iter(texts.items()))
        raise AdapterFormatError(f"the adapter checkpoint does not fit this model (rank {rank}): {text}")


def _sharded(chunk: Any) -> dict[str, Any]:
    state = chunk.sharded_state_dict()
    return {name: value for name, value in state.items() if ".adapter." in name and "_extra_state" not in name}


def _save_distributed(chunk: Any, target: str) -> None:
    import torch
    from megatron.core import dist_checkpointing

    os.makedirs(target, exist_ok=True)
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
    dist_checkpointing.save({"model": _sharded(chunk)}, target)


def _load_distributed(chunk: Any, source: str) -> None:
    from megatron.core import dist_checkpointing

    loaded = dist_checkpointing.load({"model": _sharded(chunk)}, source)
    chunk.load_state_dict(loaded["model"], strict=False)


def _save_rank_file(chunk: Any, target: str) -> None:
    import torch

    os.makedirs(target, exist_ok=True)
    state = {name: value.detach().cpu().clone() for name, value in _adapters(chunk).items()}
    torch.save({"adapter_state_dict": state}, rank_file(target))
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
