# mypy: ignore-errors
"""What the doorbell in ``verl_compat.pth`` executes when it rings; setup.py copies it into the line.

The ``.pth`` runs at the start of every interpreter of the environment, so it compiles and imports as
little as it can: it only hangs up an object on ``sys.meta_path`` whose ``find_spec`` executes this text
when a package that is watched is imported.  ``bell``, ``name``, ``path`` and ``target`` are the
arguments of that ``find_spec``; ``spec`` is what it returns.

The global import lock is given up meanwhile, as in ``_boot.GlobalLockReleased``.  The bell stays where it
is until the finder takes its place: other threads are walking over ``sys.meta_path``, and those that
import a watched package at the same moment ring it too.
"""

import _imp

spec = found = None
held = 0
try:
    while True:
        _imp.release_lock()
        held += 1
except RuntimeError:
    pass
try:
    from verl_compat._boot import start

    found = start()
except Exception:  # an orphan of an uninstalled package stays silent
    pass
finally:
    for _turn in range(held):
        _imp.acquire_lock()
if found is None:  # an orphan, or switched off: silent from now on
    bell.find_spec = lambda *args, **more: None  # noqa: F821
else:
    spec = found.find_spec(name, path, target)  # noqa: F821
