"""Find adapters by id or by the number of a public report."""

from __future__ import annotations

import difflib

from verl_compat.records import Adapter
from verl_compat.registry import all_adapters


class LookupFailedError(Exception):
    """Nothing has this id or report number; the text lists what is close."""


def find(word: str) -> tuple[Adapter, ...]:
    """The adapter of an id, or all adapters that a public report leads to.

    Raises:
        LookupFailedError: nothing matches.
    """
    adapters = all_adapters()
    found = tuple(a for a in adapters if word == a.id or word.lower() in {r.lower() for r in a.reports})
    if found:
        return found
    known = [adapter.id for adapter in adapters] + sorted({r for adapter in adapters for r in adapter.reports})
    close = difflib.get_close_matches(word, known, n=3, cutoff=0.4)
    hint = f" Did you mean {' or '.join(close)}?" if close else ""
    raise LookupFailedError(f"{word!r} is no adapter id and no known report.{hint} `verl-compat list` shows all ids.")
