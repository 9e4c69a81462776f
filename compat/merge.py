"""Merge the reports that processes left in ``VERL_COMPAT_REPORT_DIR``."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_compat.report import SCHEMA


class ReportError(Exception):
    """The reports cannot be read; the text says what to do."""


@dataclass(frozen=True)
class Merged:
    """Reports of one run.

    Attributes:
        processes: the reports, by host and pid.
        unreadable: files that are no reports, with the reason.
        silent: Python processes that a report names (a child, or the parent of several), but
            that left none: they did not activate.
    """

    processes: tuple[dict[str, Any], ...]
    unreadable: dict[str, str]
    silent: dict[str, str]

    def outcomes(self) -> dict[str, dict[str, int]]:
        """Per adapter, how many processes had which outcome."""
        counts: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        for process in self.processes:
            for adapter in process["adapters"]:
                counts[adapter["id"]][adapter["outcome"]] += 1
        return {adapter: dict(outcomes) for adapter, outcomes in sorted(counts.items())}

    def noted(self, adapter_id: str) -> dict[str, Any]:
        """What an adapter noted, by process; processes where it noted nothing are left out."""
        return {
            f"{process['host']}:{process['pid']}": process["facts"][adapter_id]
            for process in self.processes
            if adapter_id in process.get("facts", {})
        }


def merge(folder: Path) -> Merged:
    """Read all reports of a folder.

    Raises:
        ReportError: the folder is missing or holds no report.
    """
    if not folder.is_dir():
        raise ReportError(f"{folder} is no directory; give the one that VERL_COMPAT_REPORT_DIR named")
    processes: list[dict[str, Any]] = []
    unreadable: dict[str, str] = {}
    for file in sorted(folder.glob("*.json")):
        try:
            processes.append(_read(file))
        except (OSError, ValueError, RecursionError) as error:
            unreadable[file.name] = str(error)
    if not processes and unreadable:
        told = "; ".join(f"{name}: {reason}" for name, reason in unreadable.items())
        raise ReportError(f"{folder} holds no report that can be read: {told}")
    if not processes:
        raise ReportError(f"{folder} holds no report; was VERL_COMPAT_REPORT_DIR set where the processes started?")
    return Merged(tuple(processes), unreadable, _silent(processes))


def _read(file: Path) -> dict[str, Any]:
    report = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(report, dict) or report.get("schema") != SCHEMA:
        raise ValueError(f"no report of schema {SCHEMA}")
    missing = {"pid", "host", "adapters", "active", "command", "pythons"} - report.keys()
    if missing:
        raise ValueError(f"lacks {', '.join(sorted(missing))}")
    pythons = report["pythons"]
    if not isinstance(pythons, dict) or not all(str(pid).isdecimal() for pid in pythons):
        raise ValueError("'pythons' does not map process numbers to commands")
    if not isinstance(report["adapters"], list) or not all(
        isinstance(adapter, dict) and {"id", "outcome"} <= adapter.keys() for adapter in report["adapters"]
    ):
        raise ValueError("'adapters' is no list of outcomes")
    return report


def _silent(processes: list[dict[str, Any]]) -> dict[str, str]:
    """Processes that are named but left no report, and processes whose report says inactive."""
    reported = {(process["host"], process["pid"]) for process in processes}
    silent = {
        f"{process['host']}:{pid}": command
        for process in processes
        for pid, command in process["pythons"].items()
        if (process["host"], int(pid)) not in reported
    }
    silent |= {
        f"{process['host']}:{process['pid']}": process["command"] for process in processes if not process["active"]
    }
    return silent
