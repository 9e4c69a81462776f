"""Read a few members of a remote zip: a sparse local copy with only the ranges that are needed.

A vLLM wheel is some 500 MB, its Python files 7 MB.  The central directory tells where they
lie; neighbouring members are read in one request, since a request costs more than the
bytes between them.  The copy is then a valid zip for the standard library.
"""

from __future__ import annotations

import importlib
import zipfile
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

from .errors import BadWheelError
from .wheels import wanted_members

GAP = 512 * 1024
PIECE = 16 * 2**20
WORKERS = 4
TIMEOUT = (15, 60)


class RangesError(Exception):
    """The remote file cannot be read in ranges; download it whole."""


def sparse_copy(url: str, target: Path) -> None:
    """Write to ``target`` a zip of which only the wanted members are present.

    Raises :class:`RangesError` where the library or the server cannot do it,
    :class:`BadWheelError` where the archive itself is refused.
    """
    try:
        remotezip = importlib.import_module("remotezip")
        requests = importlib.import_module("requests")
    except ImportError as error:
        raise RangesError(str(error)) from None
    try:
        with requests.Session() as session:
            _copy(remotezip, session, url, target)
    except BadWheelError:
        raise
    except Exception as error:  # any fault of server, proxy or library: the full download decides
        raise RangesError(f"{type(error).__name__}: {error}") from None


def _copy(remotezip: Any, session: Any, url: str, target: Path) -> None:
    with remotezip.RemoteZip(url, session=session, timeout=TIMEOUT) as archive:
        wanted = wanted_members(archive)
        starts = sorted(member.header_offset for member in archive.infolist()) + [archive.start_dir]
        directory, size = archive.start_dir, archive.size()
    following = dict(pairwise(starts))
    ranges = merge([(m.header_offset, following[m.header_offset]) for m in wanted] + [(directory, size)])
    fetcher = remotezip.RemoteFetcher(url, session, timeout=TIMEOUT)
    with target.open("wb") as file:
        file.truncate(size)

    def copy(piece: tuple[int, int]) -> None:
        start, end = piece
        buffer = fetcher.fetch((start, end - 1))
        data = buffer.read(end - start)
        if len(data) != end - start:
            raise OSError(f"short read at {start}")
        with target.open("r+b") as file:
            file.seek(start)
            file.write(data)

    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(copy, ranges))
    with zipfile.ZipFile(target):  # the directory is whole
        pass


def merge(ranges: list[tuple[int, int]], gap: int = GAP, piece: int = PIECE) -> list[tuple[int, int]]:
    """Join half-open byte ranges that are at most ``gap`` apart, into pieces of about ``piece`` bytes."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if joined and start - joined[-1][1] <= gap and end - joined[-1][0] <= piece:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined
