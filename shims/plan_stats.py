"""Counters of the plan cache, per process."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

EXEMPT = {
    "fp8": "export_weight_dtype == 'fp8': tasks hold row-wise views and copies of scales",
    "modelopt": "export_hf_weights_modelopt: tasks hold amax snapshots and hooks (Bridge >= 0.6)",
    "quant": "export_hf_weights_quant: an own stream of quantised tensors (Bridge >= 0.5)",
    "quantised parameters": "parameters of a quantised tensor class (Transformer Engine FP8, ModelOpt, torchao)",
    "caller's tasks": "the caller passed conversion_tasks=",
    "disabled": "inside plan_cache.disabled()",
    "unknown stream": "the export is not the generator of a Bridge object (patched by somebody else)",
    "no process groups": "other processes, but no process group in sight over which ranks could agree",
    "derived parameters": "a task's weight is no parameter or buffer of the model, so it cannot be read anew",
    "bridge state": "planning left a module or tensor on the Bridge object",
}
"""Exports whose plan is never kept: the name under which ``stats().exempt`` counts them, and why."""


@dataclass(frozen=True)
class Stats:
    """What the cache did in this process so far.

    Attributes:
        hits: exports that reused a plan.
        misses: exports that planned anew and were to keep the plan.
        reasons: why they planned anew; the counts sum up to ``misses``.  ``"first export"``,
            what has changed (``"shapes"``, ``"process groups"``, ...), ``"a peer rank"``
            (this rank's plan was right, another's was not), ``"unfinished export"`` (an
            earlier one was abandoned or failed), ``"ranks differ in mode"``.
        exempt: exports left to Bridge, by mode (keys of :data:`EXEMPT`).
        inventories_skipped: adapter inventories not made, as no rank has an adapter.
        votes: agreements that took a collective.
        entries: plans kept now.
        check_seconds, vote_seconds, planning_seconds: total wall time of fingerprint checks,
            of votes (waiting for peers included) and of Bridge's planning inside our exports.
    """

    hits: int = 0
    misses: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    exempt: dict[str, int] = field(default_factory=dict)
    inventories_skipped: int = 0
    votes: int = 0
    entries: int = 0
    check_seconds: float = 0.0
    vote_seconds: float = 0.0
    planning_seconds: float = 0.0


class Counters:
    """The counters themselves; :meth:`read` gives a frozen copy."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Back to zero."""
        self.hits = 0
        self.reasons: Counter[str] = Counter()
        self.exempt: Counter[str] = Counter()
        self.inventories_skipped = 0
        self.votes = 0
        self.check_seconds = 0.0
        self.vote_seconds = 0.0
        self.planning_seconds = 0.0

    def read(self, entries: int) -> Stats:
        """A copy."""
        return Stats(
            hits=self.hits,
            misses=sum(self.reasons.values()),
            reasons=dict(self.reasons),
            exempt=dict(self.exempt),
            inventories_skipped=self.inventories_skipped,
            votes=self.votes,
            entries=entries,
            check_seconds=self.check_seconds,
            vote_seconds=self.vote_seconds,
            planning_seconds=self.planning_seconds,
        )


COUNTERS = Counters()
