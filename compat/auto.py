"""Activate on import: for ``import verl_compat.auto``, the ``verl.plugins`` entry point
and ``VERL_USE_EXTERNAL_MODULES=verl_compat.auto``.
"""

from verl_compat import activate

activate()
