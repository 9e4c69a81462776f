"""``verl-compat audit``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import AuditError

if TYPE_CHECKING:
    from verl_compat.records import Audited

    from .sources import Source

CLEAN, FINDINGS, FAILED = 0, 1, 2
DESCRIPTION = """\
Lists every name that a consumer (verl) uses of an upstream and that the upstream lacks, whether the
consumer guards the use, and which adapter of verl-compat repairs it. Nothing audited is imported.
Exit status: 0 clean, 1 findings that are neither guarded nor repaired, 2 could not run."""
SOURCE = "a version (fetched with pip), a wheel file, a folder (FOLDER@VERSION states its version) or 'installed'"


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the ``audit`` command."""
    from verl_compat.adapters.upstreams import AUDITED

    parser = subparsers.add_parser(
        "audit",
        help="what a consumer uses of the upstreams and they lack; imports nothing",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    versions = parser.add_argument_group("version set (none given: what is installed)")
    for subject in AUDITED:
        versions.add_argument(f"--{subject.option}", metavar="SOURCE", help=f"{subject.dist}: {SOURCE}")
    parser.add_argument("--consumer", type=Path, metavar="PATH", help="any other code base that uses the upstreams")
    parser.add_argument(
        "--matrix", action="store_true",
        help="each version option takes a comma-separated list of versions, or 'all'",
    )  # fmt: skip
    parser.add_argument("--direct", action="store_true", help="only the consumer, not the upstreams on each other")
    output = parser.add_argument_group("output").add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="machine-readable output (docs/audit.md)")
    output.add_argument("--markdown", action="store_true", help="for a pull request")
    parser.add_argument("--all", action="store_true", help="guarded and undecided uses too")
    parser.add_argument("--baseline", type=Path, metavar="FILE", help="accept the findings listed in FILE")
    parser.add_argument("--write-baseline", type=Path, metavar="FILE", help="accept all present findings in FILE")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command; errors are one line on standard error."""
    if find_spec("griffe") is None:
        return _fail("the audit needs griffe: pip install 'verl-compat[audit]'")
    try:
        return _matrix(args) if args.matrix else _set(args)
    except AuditError as error:
        return _fail(str(error))
    except (OSError, ValueError, RuntimeError, TypeError, OverflowError) as error:  # exit status 1 means findings
        return _fail(f"{type(error).__name__}: {error}; if your input is right, please report this")


def _fail(text: str) -> int:
    print(f"verl-compat audit: {text}", file=sys.stderr)
    return FAILED


def _named(args: argparse.Namespace) -> dict[str, str]:
    """The version options that were given, by distribution."""
    from .audit import subjects

    values = {subject.dist: getattr(args, subject.option) for subject in subjects()}
    return {dist: value for dist, value in values.items() if value is not None}


def _set(args: argparse.Namespace) -> int:
    from verl_compat.terminal import console

    from .audit import audit
    from .show import baseline, report

    consumer, providers = _sources(args)
    results = audit(consumer, providers, among=not args.direct)
    if not results:
        raise AuditError("nothing to audit: none of the given distributions uses another")
    if args.write_baseline is not None:
        count = baseline.write(args.write_baseline, results)
        print(f"{args.write_baseline}: {count} findings accepted", file=sys.stderr)
    if args.baseline is not None:
        results = baseline.apply(results, baseline.read(args.baseline))
    if args.json:
        print(report.to_json(results))
    elif args.markdown:
        print(report.to_markdown(results), end="")
    else:
        report.show(results, console(), args.all)
    return FINDINGS if any(result.left for result in results) and args.write_baseline is None else CLEAN


def _sources(args: argparse.Namespace) -> tuple[Source | None, dict[str, Source]]:
    """The consumer and the providers that the options name, else those that are installed."""
    from . import sources
    from .audit import subject_of, subjects, upstream_of

    named = _named(args)
    found: dict[str, Source] = {}
    for dist, text in named.items():
        subject = subject_of(dist)
        found[dist] = sources.given(subject, upstream_of(subject), text)
    if not named:
        for subject in subjects():
            source = sources.installed(subject, upstream_of(subject))
            if source is not None:
                found[subject.dist] = source
    if args.consumer is not None:
        return sources.code_base(args.consumer), found
    first = _consumer_of(subjects(), found)
    if first is None:
        raise AuditError(_nothing(named, found))
    return found.pop(first), found


def _nothing(named: dict[str, str], found: dict[str, Source]) -> str:
    from .audit import subjects

    if not named:
        names = ", ".join(subject.dist for subject in subjects())
        return f"nothing to audit: none of {names} that uses another one is installed; name versions, e.g. --verl 0.9.1"
    options = [f"--{subject.option} installed" for subject in subjects() if subject.dist not in found]
    here = " and ".join(f"{dist} {source.version}" for dist, source in found.items())
    return (
        f"nothing to audit: {here} alone use nothing of each other; also name what goes with it, a version or "
        f"{' or '.join(options)} (only what is named is looked at)"
    )


def _consumer_of(subjects: Sequence[Audited], found: dict[str, Source]) -> str | None:
    """The first distribution that uses another one of those found."""
    return next((s.dist for s in subjects if s.dist in found and any(used in found for used in s.uses)), None)


def _matrix(args: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.progress import Progress

    from verl_compat.terminal import console

    from . import matrix
    from .audit import subject_of, subjects, upstream_of
    from .show import report
    from .sources import given

    if args.consumer is not None or args.baseline is not None or args.write_baseline is not None:
        raise AuditError("--matrix cannot be combined with --consumer or a baseline")
    named = {dist: _versions(dist, text) for dist, text in _named(args).items()}
    first = next((s for s in subjects() if s.dist in named and any(used in named for used in s.uses)), None)
    if first is None:
        raise AuditError("--matrix needs versions of a consumer and of what it uses, e.g. --verl all --bridge all")
    consumers = [(first.dist, version) for version in named[first.dist]]
    providers = {dist: versions for dist, versions in named.items() if dist in first.uses}
    loaded: dict[tuple[str, str], Source] = {}

    def load(dist: str, version: str) -> Source:
        if (dist, version) not in loaded:
            subject = subject_of(dist)
            loaded[dist, version] = given(subject, upstream_of(subject), version)
        return loaded[dist, version]

    total = len(consumers) * sum(len(versions) for versions in providers.values())
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading", total=total)
        cells = matrix.run(consumers, providers, load, lambda text: bar.update(task, advance=1, description=text))
    if args.json:
        print(report.matrix_json(cells))
    elif args.markdown:
        print(report.matrix_markdown(cells), end="")
    else:
        report.show_matrix(cells, console())
    return FINDINGS if any(cell.left for cell in cells) else CLEAN


def _versions(dist: str, text: str) -> list[str]:
    from .audit import subject_of, upstream_of
    from .fetch import parse_version

    if text == "all":
        return list(upstream_of(subject_of(dist)).known)
    versions = [part.strip() for part in text.split(",") if part.strip()]
    if not versions:
        raise AuditError(f"--{subject_of(dist).option} {text}: names no version; expected e.g. 0.5.1,0.6.0 or all")
    for version in versions:
        parse_version(dist, version)
    return versions
