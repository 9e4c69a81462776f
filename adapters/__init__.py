"""Adapters: one module per upstream change, data only.

``TARGETS`` is written by ``python -m verl_compat.catalog .``; it is all that a starting
interpreter reads.
"""

TARGETS: dict[str, tuple[str, ...]] = {}
