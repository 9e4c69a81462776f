"""The import finder.

The ``.pth`` (see ``_ring.py``) fetches it when the first package that is watched is imported.  Only
``sys``, ``os`` and built-in modules may be imported here; all else waits until a watched module is being
imported.
"""

import _imp
import os
import sys

from verl_compat.adapters import TARGETS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any


if not hasattr(sys, "verl_compat_bell"):  # the line of the .pth, executed after this, hangs up nothing
    sys.verl_compat_bell = None  # type: ignore[attr-defined]

_complained: "list[str]" = []  # a broken installation would repeat itself at every watched import


class GlobalLockReleased:
    """The global import lock, given up by this thread for a while.

    ``find_spec`` is called under it.  Importing anything there would deadlock with a thread that
    executes the same module and waits for the global lock in an import of its own.
    """

    def __enter__(self) -> None:
        self.count = 0
        try:
            while True:
                _imp.release_lock()
                self.count += 1
        except RuntimeError:  # not, or no longer, held by this thread
            pass

    def __exit__(self, *_: "Any") -> None:
        for _turn in range(self.count):
            _imp.acquire_lock()


class Finder:
    """First on ``sys.meta_path``: lets the real finders find, then hooks the loader of watched names."""

    def __init__(self) -> None:
        self.deferred: set[str] = set()
        self.polling = False

    def find_spec(
        self, fullname: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        """The real spec with its loader hooked; None for names that are not watched."""
        if self.deferred and not self.polling:
            self.polling = True
            try:
                with GlobalLockReleased():
                    hook("poll_deferred", self.deferred)
            finally:
                self.polling = False
        if fullname not in TARGETS:
            return None
        spec = real_spec(fullname, path, target)
        if spec is None:
            with GlobalLockReleased():
                provided: ModuleSpec | None = hook("provide", fullname)
            return provided
        # a loader without exec_module is of the old kind, which the import system runs by load_module
        if hasattr(spec.loader, "exec_module"):
            spec.loader = HookLoader(spec.loader)  # type: ignore[assignment]
        return spec


class HookLoader:
    """The real loader, with the adapters run after the module has executed."""

    def __init__(self, loader: "Any") -> None:
        self._loader = loader

    def create_module(self, spec: "ModuleSpec") -> "ModuleType | None":
        """Delegate; loaders without ``create_module`` get the default."""
        create = getattr(self._loader, "create_module", None)
        module: ModuleType | None = create(spec) if create is not None else None
        return module

    def exec_module(self, module: "ModuleType") -> None:
        """Execute the module with its real loader in place, then apply the adapters."""
        name = module.__name__
        # inspect, pkg_resources and importlib.resources read these while the module executes
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        hook("before_exec", name)
        try:
            self._loader.exec_module(module)
        except Exception as error:
            hook("import_failed", name, error)
            raise
        hook("after_exec", name)

    def __getattr__(self, name: str) -> "Any":
        if name == "_loader":  # not yet set: unpickling or copying
            raise AttributeError(name)
        return getattr(self._loader, name)


def real_spec(fullname: str, path: "Any", target: "Any") -> "ModuleSpec | None":
    """Ask the other finders; ``importlib.util.find_spec`` would import the parents."""
    for finder in list(sys.meta_path):
        find = getattr(finder, "find_spec", None)
        if find is None or is_ours(finder):
            continue
        spec: ModuleSpec | None = find(fullname, path, target)
        if spec is not None:
            return spec
    return None


def mode() -> str:
    """The text of ``VERL_COMPAT``, lower case; what says no in other words is ``off``."""
    text = os.environ.get("VERL_COMPAT", "").strip().lower()
    return "off" if text in ("0", "false", "no") else text


def hook(name: str, *args: "Any") -> "Any":
    """Run an engine hook; its errors reach the importer in strict mode only."""
    if mode() == "off":
        return None
    try:
        from verl_compat import engine

        return getattr(engine, name)(*args)
    except Exception as error:
        if mode() == "strict":
            raise
        if not _complained:
            _complained.append(name)
            _complain(f"verl-compat: {name} failed and was skipped: {error!r} (VERL_COMPAT=off silences)")
        return None


def _complain(text: str) -> None:
    try:
        print(text, file=sys.stderr)
    except Exception:  # stderr is closed
        pass


def finder() -> "Finder | None":
    """The finder in place, if any.

    Known by name: a restored ``sys.modules`` (coverage, ``patch.dict``) imports this module twice.
    """
    found: Any = next((found for found in sys.meta_path if _kind(found) == "Finder"), None)
    return found  # type: ignore[no-any-return]


def install() -> "Finder | None":
    """Put the finder first on ``sys.meta_path``, once; None when switched off."""
    if mode() == "off":
        return None
    _imp.acquire_lock()  # two threads may ring at once
    try:
        found = finder()
        if found is None:
            found = Finder()
            bells = [at for at, each in enumerate(sys.meta_path) if _kind(each) == "VerlCompatDoorbell"]
            if bells:  # in its place: removing one makes other threads that walk over the list skip the next
                sys.meta_path[bells[0]] = found
            else:
                sys.meta_path.insert(0, found)
    finally:
        _imp.release_lock()
    return found


def start() -> "Finder | None":
    """Called by the ``.pth`` for the first watched package: put the finder in the bell's place.

    Leaves a first report where reports were asked for.
    """
    found = install()
    if os.environ.get("VERL_COMPAT_REPORT_DIR"):
        hook("write_report")
    return found


def is_ours(found: "Any") -> bool:
    """The finder, or the doorbell that the ``.pth`` put on ``sys.meta_path`` and nothing has rung yet."""
    return _kind(found) in ("Finder", "VerlCompatDoorbell")


def _kind(found: "Any") -> str:
    cls = type(found)
    return cls.__name__ if cls.__module__ == __name__ or cls.__name__ == "VerlCompatDoorbell" else ""


def active() -> bool:
    """Whether the finder is in place, or waits for the first watched package."""
    return any(is_ours(found) for found in sys.meta_path)
