# mypy: ignore-errors
"""What the doorbell in ``verl_compat.pth`` executes when it rings; setup.py copies it into the line.

The ``.pth`` runs at the start of every interpreter of the environment, so it compiles and imports as
little as it can: it only hangs up an object on ``sys.meta_path`` whose ``find_spec`` executes this text
when the first package that is watched is imported.  ``bell``, ``name``, ``path`` and ``target`` are the
arguments of that ``find_spec``; ``spec`` is what it returns.

The global import lock is given up meanwhile, as in ``_boot.GlobalLockReleased``.
"""

import _imp
import sys

spec = None
held = 0
if bell in sys.meta_path:  # noqa: F821
    sys.meta_path.remove(bell)  # noqa: F821
    try:
        while True:
            _imp.release_lock()
            held += 1
    except RuntimeError:
        pass
    try:
        try:
            from verl_compat._boot import start
        except Exception:  # an orphan of an uninstalled package stays silent
            pass
        else:
            spec = start(name, path, target)  # noqa: F821
    finally:
        for _turn in range(held):
            _imp.acquire_lock()
