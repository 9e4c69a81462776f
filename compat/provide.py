"""Modules that upstream moved away: provided by alias, so that no class exists twice."""

from __future__ import annotations

import importlib.abc
import sys
from collections.abc import Callable, Mapping
from importlib.machinery import ModuleSpec
from types import ModuleType

from verl_compat.refs import resolve
from verl_compat.wrapping import MARK


class ProvideLoader(importlib.abc.Loader):
    """Fills a module with names that live elsewhere now."""

    def __init__(self, adapter_id: str, names: Mapping[str, str], failed: Callable[[str], None]) -> None:
        self.adapter_id = adapter_id
        self.names = names
        self.failed = failed

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """The default module."""
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Bind each name to the living object.

        Raises:
            ModuleNotFoundError: as without us, when a home is not there either.
        """
        try:
            values = {name: resolve(reference) for name, reference in self.names.items()}
        except (ImportError, AttributeError) as error:
            self.failed(f"{type(error).__name__}: {error}")
            raise ModuleNotFoundError(
                f"No module named {module.__name__!r} (verl-compat knows {dict(self.names)}, but: {error})",
                name=module.__name__,
            ) from error
        vars(module).update(values)
        setattr(module, MARK, self.adapter_id)


def take_away() -> None:
    """Remove the provided modules, and their names in the parent packages."""
    for name, module in list(sys.modules.items()):
        if not isinstance(getattr(getattr(module, "__spec__", None), "loader", None), ProvideLoader):
            continue
        del sys.modules[name]
        parent, _, leaf = name.rpartition(".")
        if parent in sys.modules and vars(sys.modules[parent]).get(leaf) is module:
            delattr(sys.modules[parent], leaf)
