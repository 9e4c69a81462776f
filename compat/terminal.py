"""Where tables are printed: a pipe or a file has no width, so nothing is cut off there."""

from __future__ import annotations

import os
import sys

from rich.console import Console

WIDE = 240


def console() -> Console:
    """A console of the terminal's width, or a wide one where stdout is no terminal (``COLUMNS`` wins)."""
    if sys.stdout.isatty() or "COLUMNS" in os.environ:
        return Console()
    return Console(width=WIDE)
