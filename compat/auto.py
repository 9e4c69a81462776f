"""Activate on import: for ``import verl_compat.auto``, the ``verl.plugins`` entry point
and ``VERL_USE_EXTERNAL_MODULES=verl_compat.auto``.
"""

from verl_compat._boot import hook


def door() -> None:
    """Activate, unless ``revert()`` was called: what a person undid, no door does again."""
    hook("activate_by_door")


door()
