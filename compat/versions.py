"""Which release of an upstream is here: metadata, checked against the files that are loaded.

Versions are compared by their base: ``0.5.0rc1``, ``0.5.0.dev3`` and ``0.5.0+sha`` count as
``0.5.0``.  A plain PEP 440 pair ``<0.5`` / ``>=0.5`` leaves release candidates matching neither.
"""

from __future__ import annotations

import importlib.metadata
import warnings
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from verl_compat.locate import package_folder, read_version_text
from verl_compat.records import Upstream


@dataclass(frozen=True)
class Found:
    """What is known of one distribution.

    Attributes:
        dist: distribution name.
        raw: version text as found, None when the distribution is missing or states none.
        source: ``metadata`` (and the files belong to it), ``file`` (read from the source tree),
            ``unverified`` (metadata only; the files are elsewhere and state no version) or ``missing``.
        location: folder of the package, if found.
    """

    dist: str
    raw: str | None
    source: str
    location: str | None

    @property
    def base(self) -> Version | None:
        """The base version, or None when missing or unparsable."""
        return base_version(self.raw)

    @property
    def missing(self) -> bool:
        """Whether neither files nor metadata were found."""
        return self.source == "missing"


def base_version(text: str | None) -> Version | None:
    """The release part of a version text; None for text that is no version."""
    if text is None:
        return None
    try:
        return Version(Version(text).base_version)
    except InvalidVersion:
        return None


def in_range(version: Version, specifier: str) -> bool:
    """Whether a base version lies in a specifier."""
    return SpecifierSet(specifier).contains(version, prereleases=True)


def below_range(version: Version, specifier: str) -> bool:
    """Whether a version is older than all that the specifier's lower bounds admit."""
    return any(
        not SpecifierSet(str(part)).contains(version, prereleases=True)
        for part in SpecifierSet(specifier)
        if part.operator in (">=", ">", "==", "~=") and version < Version(part.version.removesuffix(".*"))
    )


def detect(upstream: Upstream) -> Found:
    """Find an upstream without importing it.

    Metadata is believed when the package's files lie where it says; for clones on
    ``PYTHONPATH`` and editable checkouts the source tree states the version.
    """
    folder = package_folder(upstream.package)
    if folder is None:
        # dist-info without files (half uninstalled), or nothing at all: it cannot be imported
        return Found(upstream.dist, None, "missing", None)
    metadata = _metadata(upstream.dist)
    stated = _version_of(metadata)
    if metadata is not None and stated is not None and _belongs(metadata, upstream.package, folder):
        return Found(upstream.dist, stated, "metadata", str(folder))
    text = read_version_text(folder, upstream.version_files)
    if text is not None:
        return Found(upstream.dist, text, "file", str(folder))
    return Found(upstream.dist, stated, "unverified", str(folder))


def requirements(what: Found) -> tuple[Requirement, ...]:
    """What a distribution declares to need; nothing for a clone: the metadata found may be that of another."""
    metadata = _metadata(what.dist) if what.source == "metadata" else None
    found = []
    try:
        for line in (metadata.requires if metadata is not None else None) or ():
            found.append(Requirement(line))
    except (InvalidRequirement, OSError, UnicodeError):  # broken metadata says no more
        pass
    return tuple(found)


def _metadata(dist: str) -> importlib.metadata.Distribution | None:
    try:
        return importlib.metadata.distribution(dist)
    except Exception:  # absent, or a finder's trouble
        return None


def _version_of(metadata: importlib.metadata.Distribution | None) -> str | None:
    """The version of a distribution; a broken dist-info (no METADATA, or unreadable) has none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python 3.12 and newer warn of a missing METADATA
            return metadata.version if metadata is not None else None
    except Exception:
        return None


def _belongs(metadata: importlib.metadata.Distribution, package: str, folder: Path) -> bool:
    """Whether the files lie where the metadata says.

    Not so for the ``.egg-info`` in a clone: it is as old as the last build there.
    """
    expected = Path(str(metadata.locate_file(package.replace(".", "/"))))
    try:
        return expected.samefile(folder) and not _is_leftover(metadata)
    except OSError:
        return False


def _is_leftover(metadata: importlib.metadata.Distribution) -> bool:
    folder = getattr(metadata, "_path", None)  # documented nowhere, there since 3.8
    return isinstance(folder, Path) and folder.suffix == ".egg-info"
