"""Warnings of ours: through ``logging``, which ``-W error`` cannot turn into exceptions."""

from __future__ import annotations

import contextlib
import logging

logger = logging.getLogger("verl_compat")
_said: set[str] = set()


def warn_once(text: str) -> None:
    """Log a warning, once per process and text."""
    if text not in _said:
        _said.add(text)
        with contextlib.suppress(Exception):  # stderr may be closed, a handler broken: no reason to stop an import
            logger.warning("verl-compat: %s", text)
