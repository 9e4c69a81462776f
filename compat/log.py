"""Warnings of ours: through ``logging``, which ``-W error`` cannot turn into exceptions."""

from __future__ import annotations

import logging

logger = logging.getLogger("verl_compat")
_said: set[str] = set()


def warn_once(text: str) -> None:
    """Log a warning, once per process and text."""
    if text not in _said:
        _said.add(text)
        logger.warning("verl-compat: %s", text)
