"""Hides the Transformer Engine stand-in from megatron.core, wherever this folder is on the path.

megatron.bridge.peft needs ``transformer_engine.pytorch`` to be importable; megatron.core guards its own
import, and would take the stand-in for the real thing.  Only megatron.core.utils, which reads the version
number, may see it.
"""

import builtins
import sys

_import = builtins.__import__


def _guarded_import(name, globals=None, locals=None, fromlist=(), level=0):
    if level == 0 and name.partition(".")[0] == "transformer_engine":
        importer = (globals or {}).get("__name__") or ""
        if importer.startswith("megatron.core") and importer != "megatron.core.utils":
            raise ModuleNotFoundError(f"No module named {name!r} for {importer}", name=name)
    return _import(name, globals, locals, fromlist, level)


if not getattr(sys, "_te_standin", False):
    sys._te_standin = True
    builtins.__import__ = _guarded_import
