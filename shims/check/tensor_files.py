"""Names, shapes and dtypes of the tensors in a folder of safetensors files, read from the headers alone."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path

_MAX_HEADER = 100_000_000  # bytes; the limit of the safetensors format itself
INDEX = "model.safetensors.index.json"

# safetensors' dtype names for the torch dtypes that weights have
DTYPES = {
    "torch.float64": "F64",
    "torch.float32": "F32",
    "torch.float16": "F16",
    "torch.bfloat16": "BF16",
    "torch.float8_e4m3fn": "F8_E4M3",
    "torch.float8_e5m2": "F8_E5M2",
    "torch.int64": "I64",
    "torch.int32": "I32",
    "torch.int16": "I16",
    "torch.int8": "I8",
    "torch.uint8": "U8",
    "torch.bool": "BOOL",
}


@dataclass(frozen=True)
class Stored:
    """One tensor on disk: its file's name, its shape and its dtype in safetensors' spelling."""

    file: str
    shape: tuple[int, ...]
    dtype: str


def read_header(file: Path) -> dict[str, Stored]:
    """The tensors of one safetensors file, by name; no tensor data is read.

    Raises:
        ValueError: the file has no readable header (cut off, or no safetensors file).
    """
    with file.open("rb") as stream:
        head = stream.read(8)
        size = struct.unpack("<Q", head)[0] if len(head) == 8 else -1
        if not 0 < size <= _MAX_HEADER:
            raise ValueError(f"{file} has no safetensors header")
        text = stream.read(size)
    try:
        header = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{file} has no safetensors header: {error}") from None
    return {
        name: Stored(file.name, tuple(entry["shape"]), entry["dtype"])
        for name, entry in header.items()
        if name != "__metadata__"
    }


def read_folder(folder: Path, names: set[str] | None = None) -> dict[str, Stored]:
    """The tensors of all safetensors files of a folder (or of the files ``names``), by tensor name."""
    found: dict[str, Stored] = {}
    for file in sorted(folder.glob("*.safetensors")):
        if names is None or file.name in names:
            found.update(read_header(file))
    return found


def read_index(folder: Path) -> dict[str, str] | None:
    """The index of a sharded checkpoint, tensor name to file name; None where there is none."""
    file = folder / INDEX
    if not file.is_file():
        return None
    return dict(json.loads(file.read_text())["weight_map"])


def some(names: set[str] | list[str], at_most: int = 5) -> str:
    """The first few of many names, for a message."""
    ordered = sorted(names)
    rest = len(ordered) - at_most
    return ", ".join(ordered[:at_most]) + (f" and {rest} more" if rest > 0 else "")
