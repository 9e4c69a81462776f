"""What adapters noted while they worked, for reports."""

from __future__ import annotations

import sys
from typing import Any

from verl_compat.log import warn_once


def facts() -> dict[str, Any]:
    """Per adapter, what its shim noted in this process; nothing is imported to ask."""
    from verl_compat.adapters.public import FACTS

    found: dict[str, Any] = {}
    for adapter_id, reference in FACTS.items():
        module, _, name = reference.partition(":")
        if module not in sys.modules:
            continue
        try:
            noted = getattr(sys.modules[module], name)()
        except Exception as error:
            warn_once(f"{adapter_id}: what it noted cannot be told: {type(error).__name__}: {error}")
            continue
        if noted:
            found[adapter_id] = noted
    return found
