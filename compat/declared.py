"""Where a release lies outside what another distribution declares in its metadata.

pip says so while it installs, and not after ``--no-deps``, by which these distributions are installed side by side.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from verl_compat.versions import Found, in_range, requirements


def outside(found: Mapping[str, Found], libraries: Iterable[str]) -> list[str]:
    """One line for each library and each distribution whose declared range leaves the library's release out."""
    declaring = [what for dist, what in found.items() if dist not in libraries and not what.missing]
    texts = [_line(found[name], what) for name in libraries if name in found for what in declaring]
    return [text for text in texts if text]


def _line(library: Found, what: Found) -> str | None:
    if library.base is None:
        return None
    of_it = [r for r in requirements(what) if canonicalize_name(r.name) == library.dist and r.specifier]
    always = [r for r in of_it if _holds(r, "")]
    if always:
        refused = [str(r.specifier) for r in always if not in_range(library.base, str(r.specifier))]
        return _text(library, what, refused[0]) if refused else None
    by_extra = dict(_extras(of_it))
    if not by_extra or any(in_range(library.base, str(r.specifier)) for r in by_extra.values()):
        return None  # which extras were meant is not recorded: one that admits the release is enough
    ranges = sorted({str(r.specifier) for r in by_extra.values()})
    return _text(library, what, f"{' or '.join(ranges)} (with the extra {' or '.join(sorted(by_extra))})")


def _extras(of_it: list[Requirement]) -> list[tuple[str, Requirement]]:
    """The requirements that hold with an extra only, by the names of the extras in their markers."""
    quoted = [(word.strip("\"'"), r) for r in of_it for word in str(r.marker or "").split() if word[0] in "\"'"]
    return [(extra, r) for extra, r in quoted if _holds(r, extra)]


def _holds(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def _text(library: Found, what: Found, declared: str) -> str:
    return f"{library.dist} {library.raw} is outside what {what.dist} {what.raw} declares: {declared}"
