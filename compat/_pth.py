"""Source of ``verl_compat.pth``; setup.py makes one ``exec`` line of it.

It runs at the start of every interpreter of the environment, so it is short and imports nothing that
is not loaded by then, not even this package: it hangs up a doorbell, which fetches the real finder
when the first module below one of ROOTS is imported.  Left behind without its package it stays silent.
"""

import os
import sys

ROOTS = ("",)  # filled in by setup.py: the first words of all targets


class VerlCompatDoorbell:
    """On ``sys.meta_path`` until it rings."""

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        """None for names outside ROOTS; for the first one inside, what the real finder says."""
        if name.partition(".")[0] not in ROOTS or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        try:
            from verl_compat._boot import start
        except Exception:  # an orphan of an uninstalled package
            return None
        return start(name, path, target)


sys.meta_path.insert(0, VerlCompatDoorbell())
if os.environ.get("VERL_COMPAT_REPORT_DIR"):  # every process reports, whatever it imports
    sys.meta_path[0].find_spec(ROOTS[0], None)
