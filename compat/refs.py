"""References: ``"package.module:attribute"`` texts that stand for code until it is needed."""

from __future__ import annotations

import importlib
from functools import reduce
from typing import Any


def resolve(reference: str) -> Any:
    """Import and return what a reference names.

    Raises:
        ValueError: the text is no ``module:attribute`` reference.
        ImportError, AttributeError: the module or the attribute does not exist.
    """
    module, separator, path = reference.partition(":")
    if not separator or not module or not path:
        raise ValueError(f"{reference!r} is no reference; expected 'package.module:attribute'")
    return reduce(getattr, path.split("."), importlib.import_module(module))
