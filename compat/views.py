"""How the CLI shows things: rich tables for people, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict

from rich.console import Console
from rich.table import Table
from rich.text import Text

from verl_compat.decide import QUIET
from verl_compat.merge import Merged
from verl_compat.records import Adapter
from verl_compat.report import AdapterStatus, Status
from verl_compat.terminal import console
from verl_compat.wording import ranges, retirement

_STYLE = {
    "applied": "green", "late": "green", "would-apply": "green", "untested": "yellow", "pending": "cyan",
    "failed": "red", "collision": "red", "disabled": "magenta",
}  # fmt: skip


def show_status(status: Status, everything: bool) -> None:
    """Versions and adapter outcomes of an environment."""
    screen = console()
    names = [what.dist for what in status.versions]
    versions = _table("distribution", "version", "read from", "folder", title="found", keys=names)
    for what in status.versions:
        versions.add_row(what.dist, what.raw or "-", what.source, what.location or "-")
    screen.print(versions)
    for note in status.notes:
        screen.print(Text(note))
    shown = [a for a in status.adapters if everything or a.outcome not in QUIET]
    _print_adapters(screen, shown, "what would be applied here" if status.predicted else "this process")
    hidden = len(status.adapters) - len(shown)
    if hidden:
        screen.print(f"{hidden} adapters do not concern this environment (--all shows them)")
    screen.print(f"mode: {status.mode}; " + ("active" if status.active else "not active in this interpreter"))


def show_merged(merged: Merged) -> None:
    """The reports of many processes."""
    screen = console()
    processes = Table("host", "pid", "active", "command", title=f"{len(merged.processes)} processes")
    for process in merged.processes:
        processes.add_row(
            process["host"],
            str(process["pid"]),
            "yes" if process["active"] else "NO",
            Text(process["command"][:100]),
        )
    screen.print(processes)
    outcomes = _table("adapter", "outcomes (processes)", title="adapters", keys=merged.outcomes())
    for adapter, counts in merged.outcomes().items():
        if counts.keys() - {*QUIET, "pending"}:
            outcomes.add_row(adapter, ", ".join(f"{outcome}: {count}" for outcome, count in sorted(counts.items())))
    screen.print(outcomes)
    for process in merged.processes:
        for adapter in process["adapters"]:
            if adapter["outcome"] in ("failed", "collision"):
                where = f"{process['host']}:{process['pid']}"
                text = f"{adapter['outcome']}: {adapter['id']} in {where}: {adapter.get('reason', '')}"
                screen.print(Text(text, style="red"))
    for where, command in merged.silent.items():
        screen.print(Text(f"did not activate: {where} {command[:120]}", style="red"))
    for file, reason in merged.unreadable.items():
        screen.print(Text(f"unreadable: {file}: {reason}", style="yellow"))


def show_adapter(adapter: Adapter, outcome: AdapterStatus, noted: Mapping[str, object]) -> None:
    """One adapter: its record, each condition with its value, and what it noted, by process."""
    screen = console()
    screen.print(Text(f"{adapter.id}: {outcome.outcome} ({outcome.reason})", style=_STYLE.get(outcome.outcome, "")))
    for label, text in _facts(adapter):
        screen.print(Text(f"  {label:<12} {text}"))
    for condition in outcome.conditions:
        mark = {True: "yes", False: "no", None: "cannot be told before import"}[condition.holds]
        screen.print(Text(f"  condition    {condition.text}: {mark} ({condition.value})"))
    for process, what in noted.items():
        screen.print(Text(f"  noted by     {process}\n{json.dumps(what, indent=2)}"))


def show_list(adapters: Iterable[Adapter]) -> None:
    """All adapters in one table."""
    shown = list(adapters)
    table = _table("id", "kind", "applies to", "what it does", keys=[adapter.id for adapter in shown])
    for adapter in shown:
        table.add_row(adapter.id, adapter.kind, ranges(adapter), adapter.summary)
    console().print(table)


def merged_json(merged: Merged) -> str:
    """``status --reports --json``."""
    return json.dumps({**asdict(merged), "outcomes": merged.outcomes()}, indent=2)


def explain_json(adapter: Adapter, outcome: AdapterStatus, noted: Mapping[str, object]) -> str:
    """``explain --json``."""
    return json.dumps({"record": asdict(adapter), "here": asdict(outcome), "noted": noted}, default=str, indent=2)


def list_json(adapters: Iterable[Adapter]) -> str:
    """``list --json``."""
    return json.dumps([{"family": a.family, **asdict(a)} for a in adapters], default=str, indent=2)


def _facts(adapter: Adapter) -> list[tuple[str, str]]:
    tested = "; ".join(", ".join(f"{d} {v}" for d, v in pair.items()) for pair in adapter.tested)
    return [
        ("what", adapter.summary),
        (
            "kind",
            adapter.kind + ("" if adapter.default else f"; off by default, VERL_COMPAT_ENABLE={adapter.id}"),
        ),
        ("target", adapter.target),
        ("applies to", ranges(adapter)),
        ("tested with", tested or "-"),
        ("why", adapter.why),
        ("links", " ".join(adapter.links)),
        ("reports", " ".join(adapter.reports) or "-"),
        ("retires", retirement(adapter)),
        ("switch off", f"VERL_COMPAT_DISABLE={adapter.id}"),
    ]


def _table(first: str, *others: str, keys: Iterable[str], title: str | None = None) -> Table:
    """A table whose first column, ``keys``, is never shortened or broken: ids are there to be copied."""
    table = Table(title=title)
    table.add_column(first, no_wrap=True, min_width=max(map(len, keys), default=0))
    for name in others:
        table.add_column(name, overflow="fold")
    return table


def _print_adapters(screen: Console, adapters: list[AdapterStatus], title: str) -> None:
    table = _table("adapter", "outcome", "reason", title=title, keys=[adapter.id for adapter in adapters])
    for adapter in adapters:
        table.add_row(adapter.id, Text(adapter.outcome, style=_STYLE.get(adapter.outcome, "")), adapter.reason)
    screen.print(table)
