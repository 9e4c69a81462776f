"""Unpacked Python files of vLLM and verl releases, for reading and for executing parts of them.

The audit's fetcher takes them out of the released wheels into its cache (``VERL_COMPAT_CACHE``);
nothing of them is ever committed.
"""

from __future__ import annotations

from pathlib import Path

from verl_compat.audit.fetch import fetch


def tree(dist: str, version: str) -> Path:
    """The folder that holds the release's package folder."""
    return fetch(dist, version).root
