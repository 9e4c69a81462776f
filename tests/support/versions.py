"""Which releases are installed here."""

from __future__ import annotations

from importlib import metadata

from packaging.version import Version


def base_version(dist: str) -> Version | None:
    """The release that a distribution counts as (``0.5.0rc1`` as 0.5.0); None when it is not installed."""
    try:
        return Version(Version(metadata.version(dist)).base_version)
    except metadata.PackageNotFoundError:
        return None


BRIDGE = base_version("megatron-bridge")
VERL = base_version("verl")
NATIVE = BRIDGE is not None and Version("0.5") <= BRIDGE
"""Bridge has the trainer helpers itself."""
