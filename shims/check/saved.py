"""After a Hugging Face save: what was yielded, what is on disk, the index and the source are compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verl_compat import integrity
from verl_compat.shims.check.tensor_files import DTYPES, Stored, read_folder, read_index, some

CHECK = "check_hf_save"
ADAPTER_CHECK = "check_hf_adapter_save"


@dataclass(frozen=True)
class Yielded:
    """One tensor as an export gave it."""

    shape: tuple[int, ...]
    dtype: str
    size: int


@dataclass
class Loss:
    """What is wrong with one save."""

    lost: set[str] = field(default_factory=set)
    changed: list[str] = field(default_factory=list)
    unindexed: set[str] = field(default_factory=set)
    dangling: set[str] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.lost or self.changed or self.unindexed or self.dangling)

    def text(self) -> str:
        """In words, each kind with a few names."""
        parts = [
            (self.lost, "{n} tensors were exported and are in no file: {names}"),
            (set(self.changed), "{n} tensors differ from what was exported: {names}"),
            (self.unindexed, "{n} tensors on disk are not in the index: {names}"),
            (self.dangling, "{n} tensors are in the index and in no file: {names}"),
        ]
        return "; ".join(line.format(n=len(names), names=some(names)) for names, line in parts if names)


def record(items: Iterator[Any], into: dict[str, Yielded]) -> Iterator[Any]:
    """Pass ``(name, tensor)`` pairs on, keeping names, shapes and dtypes."""
    for item in items:
        name, tensor = item[0], item[1]
        into[str(name)] = Yielded(tuple(tensor.shape), str(tensor.dtype), int(tensor.numel()))
        yield item


def check_save(
    original: Callable[..., Any], source: Any, generator: Any, output_path: Any, *args: Any, **kwargs: Any
) -> Any:
    """Around ``SafeTensorsStateSource.save_generator``: compare after everything was written.

    Raises:
        IntegrityError: an exported tensor is in no file, or index and files disagree.
    """
    yielded: dict[str, Yielded] = {}
    result = original(source, record(generator, yielded), output_path, *args, **kwargs)
    if _writes():
        strict = kwargs.get("strict", args[0] if args else True)
        whole = not kwargs.get("distributed_save", args[1] if len(args) > 1 else False)
        integrity.look(CHECK, compare, Path(output_path), yielded, source, bool(strict), whole)
    return result


def compare(folder: Path, yielded: dict[str, Yielded], source: Any, strict: bool, whole: bool) -> None:
    """Compare one finished save with what was exported and with its source; told or refused."""
    expected = dict(source.key_to_filename_map or {})
    files = set(expected.values()) | {"model.safetensors"}
    index = read_index(folder)
    files |= set((index or {}).values())
    disk = read_folder(folder, {Path(name).name for name in files})
    skipped = set() if strict or not expected else set(yielded) - set(expected)  # Bridge says so itself
    loss = what_is_lost({name: tensor for name, tensor in yielded.items() if name not in skipped}, disk, index)
    without = set(expected) - set(yielded)
    integrity.note(
        CHECK,
        folder=str(folder),
        exported=len(yielded),
        on_disk=len(disk),
        lost=sorted(loss.lost),
        not_exported=sorted(without),
        not_in_source=sorted(skipped),
    )
    if loss:
        integrity.say_summary("checkpoint", "incomplete")
        # where every rank writes its own files, this one may not see them all: said, but no reason to stop
        (integrity.refuse if whole else integrity.tell)(
            CHECK,
            f"the Hugging Face checkpoint in {folder} is not what the model holds: {loss.text()}. "
            "All that Bridge wrote is still there; do not load it, and see `verl-compat explain check_hf_save`",
        )
    integrity.say_summary("checkpoint", "complete" if not without else f"{len(without)} tensors of the source left out")
    _tell_shapes(folder, disk, source, expected)
    if without:
        integrity.tell(
            CHECK,
            f"the checkpoint in {folder} has {len(disk)} of the {len(expected)} tensors of its source: the model was "
            f"built without {some(without)}. Right where that is meant (MTP off, a tower left out); who loads it "
            "must not expect them",
        )


def what_is_lost(yielded: dict[str, Yielded], disk: dict[str, Stored], index: dict[str, str] | None) -> Loss:
    """Compare exported names, shapes and dtypes with files and index."""
    loss = Loss(lost=set(yielded) - set(disk))
    for name in set(yielded) & set(disk):
        before, after = yielded[name], disk[name]
        dtype = DTYPES.get(before.dtype, after.dtype)
        if (before.shape, dtype) != (after.shape, after.dtype):
            loss.changed.append(f"{name} {before.shape} {dtype} -> {after.shape} {after.dtype}")
    if index is not None:
        loss.unindexed = (set(disk) & set(yielded)) - set(index)
        loss.dangling = {name for name, file in index.items() if name not in disk or disk[name].file != Path(file).name}
    return loss


def _tell_shapes(folder: Path, disk: dict[str, Stored], source: Any, expected: dict[str, str]) -> None:
    """A shape that is not the source's: a vocabulary that kept its padding, a transposed weight."""
    origin = Path(source.path)
    if not origin.is_dir() or origin.resolve() == folder.resolve():
        return
    before = read_folder(origin, set(expected.values()))
    other = {
        f"{name} {before[name].shape} -> {disk[name].shape}"
        for name in set(disk) & set(before)
        if disk[name].shape != before[name].shape
    }
    if other:
        integrity.tell(
            CHECK,
            f"{len(other)} tensors in {folder} have another shape than in the source: {some(other)}. "
            "Right where the vocabulary was resized on purpose; then config.json must say so too",
        )


def _writes() -> bool:
    """Whether this is the rank that sees all files: rank 0, or no process group."""
    import torch.distributed as dist

    return not (dist.is_available() and dist.is_initialized()) or int(dist.get_rank()) == 0


# --- LoRA adapters ---

_saving: ContextVar[dict[str, Yielded] | None] = ContextVar("verl_compat_saving_adapter", default=None)


def note_adapter_weights(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Around ``AutoBridge.export_adapter_weights``: what a save in progress asks for is noted."""
    into = _saving.get()
    items = original(*args, **kwargs)
    return items if into is None else record(items, into)


def check_adapter_save(original: Callable[..., Any], bridge: Any, model: Any, path: Any, *args: Any, **kw: Any) -> Any:
    """Around ``AutoBridge.save_hf_adapter``: every exported adapter weight is in the file, each A with its B.

    Raises:
        IntegrityError: an adapter weight is in no file.
    """
    yielded: dict[str, Yielded] = {}
    token = _saving.set(yielded)
    try:
        result = original(bridge, model, path, *args, **kw)
    finally:
        _saving.reset(token)
    if _writes():
        integrity.look(ADAPTER_CHECK, compare_adapter, Path(path), yielded)
    return result


def compare_adapter(folder: Path, yielded: dict[str, Yielded]) -> None:
    """Compare one finished adapter save with what was exported."""
    disk = read_folder(folder, {"adapter_model.safetensors"})
    stored = sum(_size(tensor.shape) for tensor in disk.values())
    exported = sum(tensor.size for tensor in yielded.values())
    lost = {name for name in yielded if not any(name in key for key in disk)}
    unpaired = _unpaired(set(disk))
    integrity.note(
        ADAPTER_CHECK,
        folder=str(folder),
        exported=len(yielded),
        on_disk=len(disk),
        elements=[exported, stored],
        unpaired=sorted(unpaired),
    )
    # stacked experts are written under other names: their elements must all be there
    if lost and stored < exported:
        integrity.refuse(
            ADAPTER_CHECK,
            f"the adapter in {folder} is incomplete: {len(lost)} of {len(yielded)} exported tensors are in no file: "
            f"{some(lost)}. Do not load it",
        )
    if unpaired:
        integrity.refuse(
            ADAPTER_CHECK,
            f"the adapter in {folder} has halves without their other half: {some(unpaired)}. PEFT and vLLM "
            "would leave such modules without an adapter",
        )


def _unpaired(names: set[str]) -> set[str]:
    """LoRA factors whose partner (A for B, B for A) is not there."""
    pairs = ((".lora_A.", ".lora_B."), (".lora_B.", ".lora_A."))
    return {
        name for name in names for mine, other in pairs if mine in name and name.replace(mine, other, 1) not in names
    }


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for length in shape:
        size *= length
    return size
