"""The command ``verl-compat``: status, explain, list, audit."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from verl_compat import __version__
from verl_compat.log import warn_once


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; 0 for success, 2 for input that cannot be used."""
    os.environ.pop("VERL_COMPAT_REPORT_DIR", None)  # this process is none of the run that is looked at
    parser = _parser()
    args = parser.parse_args(argv)
    try:
        status: int = args.run(args)
        return status
    except BrokenPipeError:
        sys.stderr.close()  # `verl-compat list | head` is no error
        return 0
    except OSError as error:
        warn_once(f"the output could not be written: {error.strerror or error}")
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="verl-compat", description="See what verl-compat finds, does and would do.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    status = commands.add_parser("status", help="versions found, and what would be applied here; imports no upstream")
    status.add_argument("--json", action="store_true", help="machine-readable output")
    status.add_argument("--all", action="store_true", help="adapters that do not concern this environment too")
    status.add_argument("--reports", type=Path, metavar="DIR", help="merge the reports that processes left in DIR")
    status.set_defaults(run=_status)
    explain = commands.add_parser("explain", help="one adapter: why it is or is not applied here")
    explain.add_argument("id", help="adapter id, or the number of a public report such as verl#6936")
    explain.add_argument("--reports", type=Path, metavar="DIR", help="add what it noted in the processes of DIR")
    explain.add_argument("--json", action="store_true", help="machine-readable output")
    explain.set_defaults(run=_explain)
    listing = commands.add_parser("list", help="all adapters")
    listing.add_argument("--json", action="store_true", help="machine-readable output")
    listing.set_defaults(run=_list)
    _add_audit(commands)
    return parser


def _add_audit(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The audit is a package of its own; without its extra the command says what to install."""
    if find_spec("verl_compat.audit") is None:
        return
    from verl_compat.audit.cli import add_parser  # type: ignore[import-not-found,unused-ignore]

    add_parser(commands)


def _status(args: argparse.Namespace) -> int:
    from verl_compat import views
    from verl_compat.merge import ReportError, merge
    from verl_compat.report import predicted_status

    if args.reports is None:
        status = predicted_status()
        print(json.dumps(status.to_dict(), default=str, indent=2)) if args.json else views.show_status(status, args.all)
        return 0
    try:
        merged = merge(args.reports)
    except ReportError as error:
        warn_once(str(error))
        return 2
    print(views.merged_json(merged)) if args.json else views.show_merged(merged)
    return 0


def _explain(args: argparse.Namespace) -> int:
    from verl_compat import views
    from verl_compat.lookup import LookupFailedError, find
    from verl_compat.merge import ReportError, merge
    from verl_compat.report import predict

    try:
        adapters = find(args.id)
        merged = merge(args.reports) if args.reports else None
    except (LookupFailedError, ReportError) as error:
        warn_once(str(error))
        return 2
    for adapter in adapters:
        outcome, noted = predict(adapter), merged.noted(adapter.id) if merged else {}
        if args.json:
            print(views.explain_json(adapter, outcome, noted))
        else:
            views.show_adapter(adapter, outcome, noted)
    return 0


def _list(args: argparse.Namespace) -> int:
    from verl_compat import views
    from verl_compat.registry import all_adapters

    adapters = all_adapters()
    print(views.list_json(adapters)) if args.json else views.show_list(adapters)
    return 0
