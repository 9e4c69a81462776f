"""Derive from the records what must not be kept by hand: the index of targets, the README's table.

``python -m verl_compat.catalog ROOT`` rewrites both in a source checkout; ``--check`` only says
(exit status 1) that they are stale.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import re
from pathlib import Path

import verl_compat.adapters
from verl_compat.records import Adapter
from verl_compat.views import ranges

_LINE_LENGTH = 120  # the formatter joins shorter ones
_TABLE = re.compile(r"(<!-- adapters -->\n).*?(<!-- /adapters -->)", re.DOTALL)


def adapters_in_files() -> tuple[Adapter, ...]:
    """Every record, found by looking at the files and not at the index."""
    names = sorted(module.name for module in pkgutil.iter_modules(verl_compat.adapters.__path__))
    modules = [importlib.import_module(f"verl_compat.adapters.{name}") for name in names]
    return tuple(module.ADAPTER for module in modules if hasattr(module, "ADAPTER"))


def index_text() -> str:
    """The text of ``adapters/__init__.py``."""
    targets: dict[str, list[str]] = {}
    for adapter in adapters_in_files():
        targets.setdefault(adapter.target, []).append(adapter.id)
    lines = [
        '"""Adapters: one module per upstream change, data only.',
        "",
        "``TARGETS`` is written by ``python -m verl_compat.catalog .``; it is all that a starting",
        "interpreter reads.",
        '"""',
        "",
        "TARGETS: dict[str, tuple[str, ...]] = {",
    ]
    for target, ids in sorted(targets.items()):
        one_line = f'    "{target}": ("{ids[0]}",),'
        if len(ids) == 1 and len(one_line) <= _LINE_LENGTH:
            lines.append(one_line)
        else:
            lines += [f'    "{target}": (', *(f'        "{adapter_id}",' for adapter_id in ids), "    ),"]
    return "\n".join([*lines, "}", ""])


def table_text() -> str:
    """The README's table of adapters."""
    rows = ["| adapter | applies to | what it does | retires |", "| --- | --- | --- | --- |"]
    for adapter in adapters_in_files():
        retired = " or ".join(f"{dist} {spec}" for dist, spec in adapter.retire_when.items()) or adapter.keep
        name = f"[`{adapter.id}`](adapters/{adapter.id}.py)" + ("" if adapter.default else " (off by default)")
        rows.append(f"| {name} | {ranges(adapter)} | {adapter.summary} | {retired} |")
    return "\n".join(row.replace("\n", " ") for row in rows) + "\n"


def stale(root: Path) -> dict[Path, str]:
    """Files of a checkout that must change, with their right text."""
    index, readme = root / "adapters" / "__init__.py", root / "README.md"
    old_readme = readme.read_text(encoding="utf-8")
    wanted = {
        index: index_text(),
        readme: _TABLE.sub(lambda match: match[1] + table_text() + match[2], old_readme),
    }
    return {file: text for file, text in wanted.items() if file.read_text(encoding="utf-8") != text}


def main() -> int:
    """Rewrite or check; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m verl_compat.catalog")
    parser.add_argument("root", type=Path)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    changes = stale(args.root)
    for file, text in changes.items():
        print(f"stale: {file}")
        if not args.check:
            file.write_text(text, encoding="utf-8")
    return 1 if args.check and changes else 0


if __name__ == "__main__":
    raise SystemExit(main())
