"""The processes around this one, read from ``/proc`` where there is one."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def command_line(pid: int | None = None) -> str:
    """The command line of a process, of this one by default; empty when it cannot be read."""
    try:
        raw = Path(f"/proc/{pid or os.getpid()}/cmdline").read_bytes()
    except OSError:
        return "" if pid else " ".join([sys.executable, *sys.argv])
    return raw.replace(b"\0", b" ").decode(errors="replace").strip()


def children() -> dict[int, str]:
    """Child processes that run a Python: pid -> command line; empty where ``/proc`` tells nothing."""
    own = os.getpid()
    pids = [int(folder.name) for folder in Path("/proc").glob("[0-9]*") if _parent(folder) == own]
    return {pid: command for pid in pids if _is_python(command := command_line(pid))}


def _parent(folder: Path) -> int | None:
    try:
        stat = (folder / "stat").read_text(errors="replace")  # a process may have any name
    except OSError:
        return None  # the process is gone
    # the command in parentheses may hold anything; state and parent follow the last one
    return int(stat.rpartition(")")[2].split()[1])


def _is_python(command: str) -> bool:
    return "python" in os.path.basename(command.partition(" ")[0]).lower()
