"""The records that an audit returns."""

from __future__ import annotations

from dataclasses import dataclass

PROBLEMS = {
    "missing-module": "the module does not exist",
    "missing-name": "the module exists and lacks the name",
    "missing-attribute": "a class, function or module lacks the attribute",
    "missing-patch-target": "a patch names a target that does not exist",
    "patch-without-effect": "a function is assigned to an attribute that upstream does not have or read",
    "unknown-keyword": "a call passes a keyword that the signature does not have",
    "missing-argument": "a call leaves out a required parameter",
    "too-many-arguments": "a call passes more positional arguments than are taken",
    "override-signature": "an override or replacement does not fit upstream's signature",
    "became-function": "a function is used as a class (isinstance, subclassing)",
}

GUARDS = ("none", "exception", "presence", "version")


@dataclass(frozen=True, order=True)
class Finding:
    """One use that does not hold at this version set.

    Attributes:
        file, line: where, relative to the consumer's root.
        symbol: dotted path of what is missing or wrongly used.
        problem: one of :data:`PROBLEMS`.
        detail: in words.
        provider: distribution that the symbol belongs to.
        guard: ``none``; ``exception`` (a ``try`` swallows the error); ``presence`` (``hasattr`` or
            a signature is asked first); ``version`` (only reachable behind a version check that is
            false here).
        condition: the innermost enclosing condition that running decides, empty if none.
        scope: enclosing function or class of the consumer, with its module.
        repaired_by: ids of the adapters that repair it.
        since: first upstream version read in which it is wrong, after one in which it is not.
    """

    file: str
    line: int
    symbol: str
    problem: str
    detail: str
    provider: str
    guard: str = "none"
    condition: str = ""
    scope: str = ""
    repaired_by: tuple[str, ...] = ()
    since: str = ""

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What a baseline recognises it by: stable when lines move."""
        return (self.file, self.scope, self.symbol, self.problem)

    @property
    def counts(self) -> bool:
        """Whether it makes the audit fail: neither guarded nor repaired."""
        return self.guard == "none" and not self.repaired_by


@dataclass(frozen=True, order=True)
class Undecided:
    """One use that the sources do not decide, and why."""

    file: str
    line: int
    symbol: str
    kind: str
    reason: str


@dataclass(frozen=True)
class Result:
    """One consumer at one version set.

    Attributes:
        consumer: name and version.
        versions: distribution -> version of the providers.
        findings: sorted.
        undecided: sorted.
        unread: files that could not be read, with the reason.
        uses: number of uses of the providers that were looked at.
    """

    consumer: str
    consumer_version: str
    versions: tuple[tuple[str, str], ...]
    findings: tuple[Finding, ...]
    undecided: tuple[Undecided, ...]
    unread: tuple[tuple[str, str], ...]
    uses: int
    files: int

    @property
    def unguarded(self) -> tuple[Finding, ...]:
        """Findings that no code of the consumer guards: the raw count."""
        return tuple(f for f in self.findings if f.guard == "none")

    @property
    def left(self) -> tuple[Finding, ...]:
        """Findings neither guarded nor repaired: the count after verl-compat."""
        return tuple(f for f in self.findings if f.counts)
