"""Results as a table, as JSON and as Markdown."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..findings import PROBLEMS, Finding, Result
from ..matrix import Cell

FORMAT = 1


def title(result: Result) -> str:
    """``verl 0.9.1 on megatron-core 0.18.2, vllm 0.24.0``."""
    providers = ", ".join(f"{dist} {version or '(unknown version)'}" for dist, version in result.versions)
    return f"{result.consumer} {result.consumer_version}".strip() + f" on {providers}"


def summary(result: Result) -> str:
    """The counts in one line."""
    raw, left = len(result.unguarded), len(result.left)
    guarded = len(result.findings) - raw
    words = [f"{raw} unguarded, {left} after verl-compat", f"{guarded} guarded", f"{len(result.undecided)} undecided"]
    if result.unread:
        words.append(f"{len(result.unread)} files not read")
    return "; ".join(words)


# --- table -------------------------------------------------------------------


def show(results: Sequence[Result], console: Console, everything: bool = False) -> None:
    """Print a table per pair; guarded and undecided uses only with ``everything``."""
    for result in results:
        console.print(f"[bold]{escape(title(result))}[/]: {escape(summary(result))}")
        shown = result.findings if everything else result.unguarded
        if shown:
            console.print(_table(shown, everything))
        for file, reason in result.unread:
            console.print(f"  not read: {escape(file)}: {escape(reason)}")
        if everything:
            for item in result.undecided:
                text = f"  undecided: {item.file}:{item.line} {item.symbol}: {item.reason}"
                console.print(escape(text), soft_wrap=True)


def _table(findings: Sequence[Finding], everything: bool) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("where", overflow="fold", ratio=4)
    table.add_column("what", overflow="fold", ratio=5)
    if everything:
        table.add_column("guard")
    table.add_column("repaired by", overflow="fold", ratio=2)
    for finding in sorted(findings, key=lambda finding: bool(finding.repaired_by)):  # what is left comes first
        row = [f"{finding.file}:{finding.line}{_function(finding)}", words(finding)]
        row += [finding.guard] if everything else []
        table.add_row(*(escape(cell) for cell in row), escape(", ".join(finding.repaired_by) or "-"))
    return table


def _function(finding: Finding) -> str:
    """`` in Class.method``, where the use stands in one; whether it runs at import or in an optional feature."""
    module = finding.file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    inner = finding.scope.removeprefix(module).lstrip(".")
    return f" in {inner}" if inner and inner != finding.scope else " at import" if not inner else ""


def words(finding: Finding) -> str:
    """What is wrong, in one sentence that names the symbol."""
    if finding.problem in ("missing-name", "missing-attribute"):
        return finding.detail
    return f"{finding.symbol}: {finding.detail}"


def show_matrix(cells: Sequence[Cell], console: Console) -> None:
    """One table per consumer and provider; a cell is raw count / count after verl-compat."""
    for dist in dict.fromkeys(cell.provider for cell in cells):
        part = [cell for cell in cells if cell.provider == dist]
        versions = list(dict.fromkeys(cell.version for cell in part))
        table = Table(title=f"on {dist}: unguarded findings, then after verl-compat")
        table.add_column("")
        for version in versions:
            table.add_column(version, justify="right")
        for consumer in dict.fromkeys((c.consumer, c.consumer_version) for c in part):
            row = {c.version: c for c in part if (c.consumer, c.consumer_version) == consumer}
            texts = [f"{row[v].raw}/{row[v].left}" if v in row else "" for v in versions]
            table.add_row(" ".join(consumer), *texts)
        console.print(table)


# --- JSON --------------------------------------------------------------------


def to_json(results: Sequence[Result]) -> str:
    """The documented JSON of a set (docs/audit.md)."""
    return json.dumps({"format": FORMAT, "problems": PROBLEMS, "audits": [as_dict(r) for r in results]}, indent=1)


def matrix_json(cells: Sequence[Cell]) -> str:
    """The documented JSON of a matrix."""
    items = []
    for cell in cells:
        head = {"provider": cell.provider, "provider_version": cell.version, "raw": cell.raw, "left": cell.left}
        items.append({**head, **as_dict(cell.result)})
    return json.dumps({"format": FORMAT, "problems": PROBLEMS, "cells": items}, indent=1)


def as_dict(result: Result) -> dict[str, Any]:
    """One audit as JSON data."""
    return {
        "consumer": result.consumer,
        "consumer_version": result.consumer_version,
        "providers": dict(result.versions),
        "counts": {
            "findings": len(result.findings),
            "unguarded": len(result.unguarded),
            "left": len(result.left),
            "undecided": len(result.undecided),
            "uses": result.uses,
            "files": result.files,
        },
        "findings": [finding_dict(finding) for finding in result.findings],
        "undecided": [
            {"file": u.file, "line": u.line, "symbol": u.symbol, "kind": u.kind, "reason": u.reason}
            for u in result.undecided
        ],
        "unread": [{"file": file, "reason": reason} for file, reason in result.unread],
    }


def finding_dict(finding: Finding) -> dict[str, Any]:
    """One finding as JSON data."""
    return {
        "file": finding.file,
        "line": finding.line,
        "symbol": finding.symbol,
        "provider": finding.provider,
        "problem": finding.problem,
        "detail": finding.detail,
        "guard": finding.guard,
        "condition": finding.condition,
        "scope": finding.scope,
        "repaired_by": list(finding.repaired_by),
        "since": finding.since or None,
    }


# --- Markdown ----------------------------------------------------------------


def to_markdown(results: Sequence[Result]) -> str:
    """A report for a pull request."""
    lines: list[str] = []
    for result in results:
        lines += [f"### {title(result)}", "", summary(result) + ".", ""]
        if result.unguarded:
            lines += ["| where | what | problem | repaired by |", "| --- | --- | --- | --- |"]
            lines += [_markdown_row(finding) for finding in result.unguarded]
            lines.append("")
        lines += [f"- not read: `{file}`: {reason}" for file, reason in result.unread]
    return "\n".join(lines).rstrip() + "\n"


def _markdown_row(finding: Finding) -> str:
    repaired = ", ".join(f"`{name}`" for name in finding.repaired_by) or "-"
    detail = finding.detail.replace("|", "\\|")
    return f"| `{finding.file}:{finding.line}` | `{finding.symbol}`: {detail} | {finding.problem} | {repaired} |"


def matrix_markdown(cells: Sequence[Cell]) -> str:
    """The matrix as Markdown tables; a cell is raw count / count after verl-compat."""
    lines: list[str] = []
    for dist in dict.fromkeys(cell.provider for cell in cells):
        part = [cell for cell in cells if cell.provider == dist]
        versions = list(dict.fromkeys(cell.version for cell in part))
        lines += [f"### on {dist}", "", "| | " + " | ".join(versions) + " |", "| --- |" + " ---: |" * len(versions)]
        for consumer in dict.fromkeys((c.consumer, c.consumer_version) for c in part):
            row = {c.version: c for c in part if (c.consumer, c.consumer_version) == consumer}
            texts = [f"{row[v].raw}/{row[v].left}" if v in row else "" for v in versions]
            lines.append(f"| {' '.join(consumer)} | " + " | ".join(texts) + " |")
        lines.append("")
    return "\n".join(lines)
