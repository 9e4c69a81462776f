"""Cut what the GPU run needs out of a vLLM wheel: ``python pack.py WHEEL OUT_DIR``.

Writes ``OUT_DIR/<wheel>.part00``, ``.part01`` ... of 60 MB; joined (``cat``) they are a zip with
vLLM's Python files and its kernel libraries, entries copied as they are compressed in the wheel.
"""

from __future__ import annotations

import re
import sys
import zipfile
from pathlib import Path

PIECE = 60_000_000
WANTED = re.compile(r"vllm/(_C(_stable_libtorch)?|_moe_C(_stable_libtorch)?)\.abi3\.so|vllm/.*\.py")


def copy_entries(wheel: Path, target: Path) -> None:
    """A new zip with the wanted entries, raw."""
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(target, "w") as out, open(wheel, "rb") as raw:
        for info in source.infolist():
            if not WANTED.fullmatch(info.filename):
                continue
            raw.seek(info.header_offset + 26)
            name, extra = (int.from_bytes(raw.read(2), "little") for _ in range(2))
            raw.seek(info.header_offset + 30 + name + extra)
            data = raw.read(info.compress_size)
            entry = zipfile.ZipInfo(info.filename, info.date_time)
            entry.compress_type, entry.CRC = info.compress_type, info.CRC
            entry.compress_size, entry.file_size = info.compress_size, info.file_size
            entry.header_offset = out.fp.tell()
            out.fp.write(entry.FileHeader(zip64=False))
            out.fp.write(data)
            out.filelist.append(entry)
            out.NameToInfo[entry.filename] = entry
            out.start_dir = out.fp.tell()
            out._didModify = True


def main() -> None:
    wheel, folder = Path(sys.argv[1]), Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    whole = folder / (wheel.name.split("-cp")[0] + ".zip")
    copy_entries(wheel, whole)
    with zipfile.ZipFile(whole) as check:
        names = check.namelist()
    data = whole.read_bytes()
    whole.unlink()
    for number, start in enumerate(range(0, len(data), PIECE)):
        (folder / f"{whole.name}.part{number:02d}").write_bytes(data[start : start + PIECE])
    print(f"{len(names)} entries, {len(data) / 1e6:.0f} MB, {number + 1} pieces of {PIECE / 1e6:.0f} MB in {folder}")


if __name__ == "__main__":
    main()
