"""Where an audited distribution comes from: installed, a version to fetch, a wheel file, a folder."""

from __future__ import annotations

import hashlib
import pickle
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from verl_compat.locate import package_folder, read_version_text
from verl_compat.records import Audited, Upstream
from verl_compat.versions import detect

from . import fetch
from .errors import AuditError
from .read import consumer as reading
from .read.uses import Consumer
from .trees import SourceTree


@dataclass(frozen=True)
class Source:
    """One distribution's sources.

    Attributes:
        dist: distribution name, or what a code base given by ``--consumer`` is called.
        version: version text, empty when the sources state none.
        root: folder that the packages lie in.
        folders: what to read when it is the consumer.
        immutable: the files never change, so what was read of them may be kept.
    """

    dist: str
    version: str
    root: Path
    folders: tuple[Path, ...]
    immutable: bool = False

    def tree(self) -> SourceTree:
        """The sources as a tree to look names up in."""
        return SourceTree(self.root, self.version)

    def consumer(self, roots: Mapping[str, str]) -> Consumer:
        """What this code base uses of the distributions that own ``roots``; kept in the cache where it may be."""
        roots = {root: dist for root, dist in roots.items() if dist != self.dist}
        kept = self._kept(roots) if self.immutable else None
        if kept is not None and kept.is_file():
            try:
                with kept.open("rb") as file:
                    known = pickle.load(file)
                if isinstance(known, Consumer):
                    return known
            except Exception:  # a damaged pickle may raise anything
                pass  # written by another version, or damaged: read again
        found = reading.read_consumer(self.dist, self.version, self.root, self.folders, roots)
        if kept is not None:
            _keep(kept, found)
        return found

    def _kept(self, roots: Mapping[str, str]) -> Path:
        here = Path(__file__).parent
        digest = hashlib.sha256(repr((sorted(roots.items()), sys.version_info[:2])).encode())
        for file in (*sorted((here / "read").glob("*.py")), here / "trees.py"):
            digest.update(file.read_bytes())
        return self.root.parent / f"uses-{digest.hexdigest()[:16]}.pickle"


def _keep(file: Path, found: Consumer) -> None:
    try:
        with fetch.building(file.parent) as work:
            part = work / "part"
            part.write_bytes(pickle.dumps(found, protocol=pickle.HIGHEST_PROTOCOL))
            part.replace(file)
    except (AuditError, OSError, RecursionError):
        pass  # the cache is a convenience


def installed(subject: Audited, upstream: Upstream) -> Source | None:
    """The installed distribution, found without importing it; None when there is none."""
    found = detect(upstream)
    folder = package_folder(upstream.package)
    if found.missing or folder is None:
        return None
    root = _root_of(folder, upstream.package)
    return Source(subject.dist, found.raw or "", root, _folders(root, subject.roots))


def _root_of(folder: Path, package: str) -> Path:
    return folder.parents[package.count(".")]


def _folders(root: Path, roots: tuple[str, ...]) -> tuple[Path, ...]:
    folders = (root.joinpath(*name.split(".")) for name in roots)
    return tuple(folder for folder in folders if folder.is_dir())


def given(subject: Audited, upstream: Upstream, text: str) -> Source:
    """What an option names: a version, a ``.whl`` file, or a folder (``FOLDER@VERSION`` states its version).

    Raises:
        AuditError: it is none of these, or belongs to another project.
    """
    if len(text) > 4096:
        raise AuditError(f"--{subject.option}: {len(text)} characters; expected a version, a .whl file or a folder")
    path, _, stated = text.partition("@")
    if text.endswith(".whl"):
        done = fetch.unpacked(Path(text), subject.dist)
        return Source(subject.dist, done.version, done.root, _folders(done.root, subject.roots), immutable=True)
    if Path(path).is_dir():
        return _folder(subject, upstream, Path(path).resolve(), stated)
    if "/" in text or "\\" in text or Path(path).exists():
        raise AuditError(
            f"--{subject.option} {text}: no such folder or wheel; expected a version, a .whl file or a folder"
        )
    if text == "installed":
        source = installed(subject, upstream)
        if source is None:
            raise AuditError(f"{subject.dist} is not installed; name a version, a wheel file or a folder")
        return source
    done = fetch.fetch(subject.dist, text)
    return Source(subject.dist, done.version, done.root, _folders(done.root, subject.roots), immutable=True)


def _folder(subject: Audited, upstream: Upstream, folder: Path, stated: str) -> Source:
    inner = Path(*subject.roots[0].split("."))
    for root in (folder, folder / "src", *(folder.parents[:2])):
        whole = root / inner
        if whole.is_dir() and (root in (folder, folder / "src") or whole == folder):
            version = stated or read_version_text(root.joinpath(*upstream.package.split(".")), upstream.version_files)
            version = version or _metadata_version(root, subject.dist)
            return Source(subject.dist, version or "", root, _folders(root, subject.roots))
    raise AuditError(f"{folder} holds no {subject.roots[0]}; expected {inner.as_posix()}/ in it or in its src/")


def _metadata_version(root: Path, dist: str) -> str:
    for file in sorted(root.glob(f"{dist.replace('-', '_')}-*.dist-info")):
        return file.name[: -len(".dist-info")].rpartition("-")[2]
    return ""


def code_base(folder: Path) -> Source:
    """Any other code base that uses the upstreams.

    Raises:
        AuditError: there is no such folder, or it holds no Python file.
    """
    if not folder.is_dir():
        raise AuditError(f"--consumer {folder}: no such folder; expected one that holds Python files")
    whole = folder.resolve()
    if next(whole.rglob("*.py"), None) is None:
        raise AuditError(f"--consumer {folder}: holds no Python file; nothing would be looked at")
    root = whole
    while (root / "__init__.py").is_file() and root.parent != root:
        root = root.parent
    if root == whole and (whole / "src").is_dir() and not any(whole.glob("*/__init__.py")):
        root = whole / "src"
    return Source(whole.name, "", root, (whole if root != whole / "src" else root,))
