"""Findings that are known and accepted, for a consumer's own CI."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..errors import AuditError
from ..findings import Finding, Result

FORMAT = 1
Key = tuple[str, str, str, str, str]


def read(file: Path) -> frozenset[Key]:
    """The keys in a baseline file.

    Raises:
        AuditError: the file is missing, no JSON, or of another format.
    """
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise AuditError(f"baseline {file}: {error.strerror}; write one with --write-baseline {file}") from None
    except ValueError as error:
        raise AuditError(f"baseline {file}: not JSON ({error}); write it again with --write-baseline") from None
    items = data.get("findings") if isinstance(data, dict) else None
    if not isinstance(items, list) or data.get("format") != FORMAT or not all(isinstance(item, dict) for item in items):
        raise AuditError(f"baseline {file}: expected format {FORMAT}; write it again with --write-baseline")
    fields = ("consumer", "file", "scope", "symbol", "problem")
    return frozenset(tuple(str(item.get(name, "")) for name in fields) for item in items)  # type: ignore[misc]


def write(file: Path, results: Sequence[Result]) -> int:
    """Write the findings that now make the audit fail; returns their number."""
    keys = sorted({key(result, finding) for result in results for finding in result.left})
    fields = ("consumer", "file", "scope", "symbol", "problem")
    items = [dict(zip(fields, item, strict=True)) for item in keys]
    try:
        file.write_text(json.dumps({"format": FORMAT, "findings": items}, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise AuditError(f"baseline {file}: cannot be written there ({error.strerror})") from None
    return len(keys)


def key(result: Result, finding: Finding) -> Key:
    """What a finding is recognised by when lines have moved."""
    return (result.consumer, *finding.key)


def apply(results: Sequence[Result], known: frozenset[Key]) -> list[Result]:
    """The results without the findings that the baseline accepts."""
    return [
        replace(result, findings=tuple(f for f in result.findings if key(result, f) not in known)) for result in results
    ]
