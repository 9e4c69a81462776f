"""Source trees: find modules by dotted name and read files, without importing anything."""

from __future__ import annotations

import ast
import os
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

MAX_SOURCE = 5 * 2**20
SKIPPED_FOLDERS = frozenset({"node_modules", "__pycache__", "build", "dist", "site-packages", "3rdparty"})


class UnreadableError(Exception):
    """A source file cannot be used; the text says why."""


def read_text(path: Path) -> str:
    """The text of a source file; UnreadableError for one too large or not decodable."""
    try:
        if not path.is_file():  # a pipe would be waited for
            raise UnreadableError("no regular file")
        size = path.stat().st_size
        if size > MAX_SOURCE:
            raise UnreadableError(f"{size / 2**20:.1f} MB, more than the limit of {MAX_SOURCE // 2**20} MB")
        data = path.read_bytes()
    except OSError as error:
        raise UnreadableError(error.strerror or str(error)) from None
    return decode(data)


def decode(data: bytes) -> str:
    """Source bytes as text: UTF-8, else the encoding that the file declares, else Latin-1."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        declared = re.match(rb"(?:.*\n)?.*coding[:=][ \t]*([-\w.]+)", data[:200])
        try:
            return data.decode(declared[1].decode("ascii") if declared else "latin-1")
        except (LookupError, UnicodeDecodeError):
            return data.decode("latin-1")


def parse(text: str) -> ast.Module:
    """The syntax tree; UnreadableError with the line for what this Python cannot parse."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text)
    except SyntaxError as error:
        raise UnreadableError(f"syntax error on line {error.lineno}: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise UnreadableError(f"cannot be parsed: {error or type(error).__name__}") from None


def source_files(folder: Path) -> Iterator[Path]:
    """All Python files below a folder, in order; symbolic links to folders are not followed."""
    for here, folders, files in os.walk(folder, followlinks=False):
        folders[:] = sorted(f for f in folders if not f.startswith(".") and f not in SKIPPED_FOLDERS)
        for name in sorted(files):
            if name.endswith(".py"):
                yield Path(here, name)


@dataclass
class SourceTree:
    """One distribution's sources.

    Attributes:
        root: folder that holds the top-level packages.
        version: version text, empty when unknown.
    """

    root: Path
    version: str = ""
    _files: dict[str, Path | None] = field(default_factory=dict, repr=False)
    _texts: dict[Path, str] = field(default_factory=dict, repr=False)

    def module_file(self, name: str) -> Path | None:
        """The file of a module or package, None where there is none (or it is a namespace)."""
        if name not in self._files:
            self._files[name] = self._module_file(name)
        return self._files[name]

    def _module_file(self, name: str) -> Path | None:
        path = self.root.joinpath(*name.split("."))
        for candidate in (path / "__init__.py", path.with_name(path.name + ".py")):
            if candidate.is_file():
                return candidate
        return None

    def is_folder(self, name: str) -> bool:
        """Whether a dotted name is a folder (a package with or without ``__init__``)."""
        return self.root.joinpath(*name.split(".")).is_dir()

    def is_compiled(self, name: str) -> bool:
        """Whether a dotted name is an extension module or has only a stub."""
        path = self.root.joinpath(*name.split("."))
        pattern = re.compile(re.escape(path.name) + r"(\.[\w-]+)*\.(so|pyd|pyi|pyx)$")
        try:
            return any(pattern.fullmatch(entry.name) for entry in os.scandir(path.parent))
        except OSError:
            return False

    def text(self, path: Path) -> str:
        """The text of one of the tree's files, kept; empty where it cannot be read."""
        if path not in self._texts:
            try:
                self._texts[path] = read_text(path)
            except UnreadableError:
                self._texts[path] = ""
        return self._texts[path]

    def relative(self, path: Path) -> str:
        """A file's path below the root, with forward slashes."""
        try:
            return path.relative_to(self.root).as_posix()
        except ValueError:
            return path.as_posix()
