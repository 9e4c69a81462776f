"""``numpy.product`` for single modules that still say it; NumPy itself is left alone."""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any


def lacks_product(module: ModuleType) -> bool:
    """Whether the module says ``np.product`` and its ``np`` is a NumPy without it (NumPy 2.0 and newer)."""
    numpy = vars(module).get("np")
    return numpy is not None and not hasattr(numpy, "product") and "np.product" in inspect.getsource(module)


class NumpyWithProduct(ModuleType):
    """NumPy as one module sees it: everything is NumPy's own, and ``product`` is ``prod``."""

    def __init__(self, numpy: ModuleType) -> None:
        super().__init__(numpy.__name__)
        self._numpy = numpy

    def __getattr__(self, name: str) -> Any:
        if name == "_numpy":  # not yet set: copying
            raise AttributeError(name)
        return getattr(self._numpy, "prod" if name == "product" else name)

    def __dir__(self) -> list[str]:
        return [*dir(self._numpy), "product"]


def with_product(module: ModuleType) -> NumpyWithProduct:
    """NumPy with ``product``, for the ``np`` of a module."""
    return NumpyWithProduct(vars(module)["np"])
