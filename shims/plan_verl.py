"""verl 0.9's hand-kept task list, routed through the plan cache.

``MegatronEngine._mbridge_export_tasks`` (verl 0.9.0 and 0.9.1, verl PR #7348) keeps the list of
``bridge.get_conversion_tasks`` in ``_hf_export_tasks`` until ``__init__`` or ``initialize`` sets
that to None.  Nothing else makes the list anew, so after a structural change (a parameter
replaced, a dtype changed) it exports wrong weights with no error.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any


class RoutedTasks:
    """Stands in ``_hf_export_tasks`` and in ``conversion_tasks=``; asks for the plan cache.

    The cache takes it for "no tasks given", and for the token of the plan: another token
    (after a reset by verl, or by the user setting ``_hf_export_tasks = None``) is another plan.
    Whoever reads it as a list (Bridge with the cache switched off, code that looks at the
    attribute) finds the list that verl would have kept, made on first use.
    """

    def __init__(self, engine: Any) -> None:
        self._engine = weakref.ref(engine)
        self._tasks: list[Any] | None = None

    def _list(self) -> list[Any]:
        if self._tasks is None:
            engine = self._engine()
            if engine is None:
                raise RuntimeError("the conversion tasks of an engine that no longer exists were read")
            self._tasks = list(engine.bridge.get_conversion_tasks(engine.module))
        return self._tasks

    def __iter__(self) -> Iterator[Any]:
        return iter(self._list())

    def __len__(self) -> int:
        return len(self._list())

    def __getitem__(self, index: Any) -> Any:
        return self._list()[index]

    def __bool__(self) -> bool:
        return True


def export_tasks(original: Callable[..., Any], engine: Any) -> Any:
    """Wrapper of ``MegatronEngine._mbridge_export_tasks``: a token in place of a kept list.

    None where verl itself gives None (FP8).  A list that is already there is dropped: it may
    be stale.
    """
    if getattr(engine.bridge, "export_weight_dtype", None) == "fp8":
        return original(engine)
    if not isinstance(engine._hf_export_tasks, RoutedTasks):
        engine._hf_export_tasks = RoutedTasks(engine)
    return engine._hf_export_tasks
