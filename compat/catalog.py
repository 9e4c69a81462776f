"""Derive from the records what must not be kept by hand: the index of targets, the README's table.

``python -m verl_compat.catalog ROOT`` rewrites both in a source checkout; ``--check`` only says
(exit status 1) that they are stale.  Records and code are those of the checkout, whatever copy of the
package is installed: see :func:`_main_of`.
"""

from __future__ import annotations

import argparse
import importlib
import re
import runpy
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from verl_compat.records import Adapter
from verl_compat.wording import ranges, retirement

_LINE_LENGTH = 120  # the formatter joins shorter ones
_TABLE = re.compile(r"(<!-- adapters -->\n).*?(<!-- /adapters -->)", re.DOTALL)


def adapters_in_files(root: Path) -> tuple[Adapter, ...]:
    """Every record of a checkout, found by looking at the files and not at the index."""
    files = sorted((root / "adapters").glob("*.py"))
    found = [_run(file).get("ADAPTER") for file in files if file.stem != "__init__"]
    return tuple(adapter for adapter in found if adapter is not None)


def index_text(adapters: tuple[Adapter, ...]) -> str:
    """The text of ``adapters/__init__.py``."""
    targets: dict[str, list[str]] = {}
    for adapter in adapters:
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


def table_text(adapters: tuple[Adapter, ...]) -> str:
    """The README's table of adapters."""
    rows = ["| adapter | applies to | what it does | retires |", "| --- | --- | --- | --- |"]
    for adapter in adapters:
        name = f"[`{adapter.id}`](adapters/{adapter.id}.py)" + ("" if adapter.default else " (off by default)")
        rows.append(f"| {name} | {ranges(adapter)} | {adapter.summary} | {retirement(adapter)} |")
    return "\n".join(row.replace("\n", " ") for row in rows) + "\n"


def stale(root: Path) -> dict[Path, str]:
    """Files of a checkout that must change, with their right text."""
    index, readme = root / "adapters" / "__init__.py", root / "README.md"
    adapters = adapters_in_files(root)
    wanted = {
        index: index_text(adapters),
        readme: _TABLE.sub(lambda match: match[1] + table_text(adapters) + match[2], _text(readme)),
    }
    return {file: text for file, text in wanted.items() if _text(file) != text}


def main() -> int:
    """Rewrite or check; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m verl_compat.catalog")
    parser.add_argument("root", type=Path, help="a source checkout")
    parser.add_argument("--check", action="store_true", help="change nothing; status 1 if something is stale")
    args = parser.parse_args()
    if not (args.root / "compat" / "catalog.py").is_file():
        parser.error(f"{args.root} is no source checkout of verl-compat: it has no compat/catalog.py")
    if not Path(__file__).samefile(args.root / "compat" / "catalog.py"):
        return _main_of(args.root)
    changes = stale(args.root)
    for file, text in changes.items():
        print(f"stale: {file}" if args.check else f"written: {file}")
        if not args.check:
            file.write_text(text, encoding="utf-8")
    return 1 if args.check and changes else 0


def _main_of(root: Path) -> int:
    """``main`` of the checkout's own code.

    A record may use what the installed copy does not know yet; and a generated index with the marks of a
    merge in it must not stop what repairs it, so nothing of ``adapters/`` is imported.
    """
    for name in [name for name in sys.modules if name.partition(".")[0] == "verl_compat"]:
        del sys.modules[name]
    folder = root.resolve() / "compat"
    spec = spec_from_file_location("verl_compat", folder / "__init__.py", submodule_search_locations=[str(folder)])
    assert spec is not None
    assert spec.loader is not None
    package = sys.modules["verl_compat"] = module_from_spec(spec)
    spec.loader.exec_module(package)
    status: int = importlib.import_module("verl_compat.catalog").main()
    return status


def _run(file: Path) -> dict[str, Any]:
    return runpy.run_path(str(file), run_name=f"verl_compat.adapters.{file.stem}")


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8")


if __name__ == "__main__":
    raise SystemExit(main())
