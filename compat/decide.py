"""Whether an adapter is to be applied: switches, versions, then the feature tests, which have the last word."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType

from verl_compat.features import holds, holds_in_source
from verl_compat.locate import source_file
from verl_compat.records import Adapter, Lacks, Provide, Test, describe
from verl_compat.switches import Switches
from verl_compat.versions import Found, base_version, below_range, in_range

OUTCOMES = (
    "pending", "applied", "late", "not-needed", "out-of-range", "untested", "collision", "disabled", "failed",
)  # fmt: skip


# outcomes that say "this does not concern you here"
QUIET = ("not-needed", "out-of-range")


@dataclass(frozen=True)
class Condition:
    """One condition with the value that it had; ``holds`` is None where it cannot be told yet."""

    text: str
    value: str
    holds: bool | None


@dataclass(frozen=True)
class Decision:
    """``outcome`` None means: apply it (``untested`` says with which mark)."""

    outcome: str | None
    reason: str
    untested: bool = False
    conditions: tuple[Condition, ...] = ()


Lookup = Callable[[str], Found]


def decide(adapter: Adapter, switches: Switches, found: Lookup, module: ModuleType | None) -> Decision:
    """Decide about an adapter, for an imported target or (``module`` None) from its source alone."""
    disabled = switches.why_disabled(adapter)
    if disabled and module is not None:
        return Decision("disabled", disabled)
    versions = {dist: found(dist) for dist in adapter.applies}
    missing = [dist for dist, what in versions.items() if what.missing]
    if missing:
        return Decision("out-of-range", f"{' and '.join(missing)} not installed")
    decision = _by_versions(adapter, versions, module)
    return Decision("disabled", disabled) if disabled and decision.outcome not in QUIET else decision


def _by_versions(adapter: Adapter, versions: Mapping[str, Found], module: ModuleType | None) -> Decision:
    ranges = tuple(_range_condition(dist, spec, versions[dist]) for dist, spec in adapter.applies.items())
    below = [
        _text(what) for dist, what in versions.items() if what.base and below_range(what.base, adapter.applies[dist])
    ]
    if below:
        return Decision("out-of-range", f"{', '.join(below)} is older than supported", conditions=ranges)
    features = _features(adapter, module)
    conditions = ranges + features
    inside = all(condition.holds for condition in ranges)
    if any(feature.holds is False for feature in features):
        no = next(feature.text for feature in features if feature.holds is False)
        return Decision("not-needed", f"not so: {no}", conditions=conditions)
    if not inside and not any(isinstance(feature, (Lacks, Test)) for feature in adapter.needed):
        # what a release still has says nothing of whether it still needs the repair
        return Decision("out-of-range", _outside(ranges), conditions=conditions)
    if any(feature.holds is None for feature in features):
        told = "the imported module will tell"
        return Decision("pending", told if inside else f"{_outside(ranges)}, but {told}", conditions=conditions)
    untested = not inside or not _within_tested(adapter, versions)
    return Decision(None, _why_apply(inside, untested, versions), untested, conditions)


def _range_condition(dist: str, specifier: str, what: Found) -> Condition:
    value = _text(what)
    if what.base is None:
        return Condition(f"{dist}{specifier}", value, None)
    return Condition(f"{dist}{specifier}", value, in_range(what.base, specifier))


def _features(adapter: Adapter, module: ModuleType | None) -> tuple[Condition, ...]:
    if module is not None:
        return tuple(Condition(describe(f), "imported module", holds(f, module)) for f in adapter.needed)
    if any(isinstance(patch, Provide) for patch in adapter.patches):
        absent = source_file(adapter.target) is None
        return (Condition(f"upstream lacks {adapter.target}", "files on the path", absent),)
    file = source_file(adapter.target)
    if file is None:
        return (Condition(f"{adapter.target} exists", "files on the path", False),)
    return tuple(Condition(describe(f), "source file", holds_in_source(f, file)) for f in adapter.needed)


def _within_tested(adapter: Adapter, versions: Mapping[str, Found]) -> bool:
    """Whether each version lies between the oldest and the newest that the matrix ran."""
    for dist, what in versions.items():
        tested = sorted(filter(None, (base_version(pair.get(dist)) for pair in adapter.tested)))
        if what.base is None or not tested or not tested[0] <= what.base <= tested[-1]:
            return False
    return True


def _why_apply(inside: bool, untested: bool, versions: Mapping[str, Found]) -> str:
    known = ", ".join(_text(what) for what in versions.values())
    if not inside:
        return f"{known}: outside the declared range, but the feature test asks for it"
    return f"{known}: in range, outside what the matrix ran" if untested else known


def _outside(ranges: tuple[Condition, ...]) -> str:
    return "; ".join(f"{c.value} is not {c.text}" for c in ranges if not c.holds)


def _text(what: Found) -> str:
    return f"{what.dist} {what.raw or 'of unknown version'}"
