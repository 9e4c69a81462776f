"""Take the Python files out of a wheel, and nothing that could do harm.

Only sources, the distribution's metadata and version texts are kept.  Refused: absolute
paths and paths that leave the archive, symbolic links, members that unpack to more than
the limits below (bounded reads, so a header that lies is caught as well).
"""

from __future__ import annotations

import stat
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from .errors import BadWheelError

MAX_MEMBER = 64 * 2**20
MAX_TOTAL = 768 * 2**20
MAX_MEMBERS = 60_000

METADATA_FILES = frozenset({"METADATA", "entry_points.txt", "top_level.txt", "WHEEL"})
EXTENSION_SUFFIXES = frozenset({".so", ".pyd"})
VERSION_FILES = frozenset({"version", "version.txt", "VERSION", "VERSION.txt"})


@dataclass(frozen=True)
class WheelName:
    """Distribution (normalised) and version that a wheel's file name states."""

    dist: str
    version: str


def parse_name(filename: str) -> WheelName:
    """Read a wheel's file name; BadWheelError when it is not one."""
    try:
        dist, version, _, _ = parse_wheel_filename(filename)
    except InvalidWheelFilename as error:
        raise BadWheelError(f"{filename}: not a wheel file name ({error}); expected NAME-VERSION-...whl") from None
    return WheelName(str(dist), str(version))


def check_project(filename: str, dist: str) -> WheelName:
    """The wheel's name, when it belongs to ``dist``; BadWheelError when it is another project's."""
    name = parse_name(filename)
    if name.dist != canonicalize_name(dist):
        raise BadWheelError(f"{filename} is a wheel of {name.dist}, expected one of {canonicalize_name(dist)}")
    return name


def is_wanted(name: str) -> bool:
    """Whether the audit needs a member: Python source, metadata or a version text."""
    path = PurePosixPath(name)
    if path.suffix == ".py":
        return not any(part.endswith(".data") for part in path.parts[:1])
    if len(path.parts) == 2 and path.parts[0].endswith(".dist-info"):
        return path.name in METADATA_FILES
    return path.name in VERSION_FILES


def wanted_members(archive: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    """The members to unpack, all checked by name, kind and stated size."""
    members = archive.infolist()
    if len(members) > MAX_MEMBERS:
        raise BadWheelError(f"archive holds {len(members)} files, more than the limit of {MAX_MEMBERS}")
    wanted = [member for member in members if is_wanted(member.filename)]
    for member in members:
        check_path(member.filename)
    for member in wanted:
        check_member(member)
    total = sum(member.file_size for member in wanted)
    if total > MAX_TOTAL:
        raise BadWheelError(f"Python files unpack to {total} bytes, more than the limit of {MAX_TOTAL}")
    return wanted


def check_path(name: str) -> None:
    """Refuse a member name that would be written outside the target folder."""
    path = PurePosixPath(name)
    drive = len(name) > 1 and name[1] == ":"
    if path.is_absolute() or drive or ".." in path.parts or "\\" in name or "\0" in name:
        raise BadWheelError(f"member {name!r} leaves the archive; refused")


def check_member(member: zipfile.ZipInfo) -> None:
    """Refuse symbolic links, encrypted and oversized members."""
    if stat.S_ISLNK(member.external_attr >> 16):
        raise BadWheelError(f"member {member.filename!r} is a symbolic link; refused")
    if member.flag_bits & 0x1:
        raise BadWheelError(f"member {member.filename!r} is encrypted; refused")
    if member.file_size > MAX_MEMBER:
        raise BadWheelError(f"member {member.filename!r} unpacks to {member.file_size} bytes, limit {MAX_MEMBER}")


def unpack(archive: zipfile.ZipFile, members: list[zipfile.ZipInfo], target: Path) -> int:
    """Write checked members below ``target``; returns the number of bytes written."""
    total = 0
    for member in members:
        with archive.open(member) as stream:
            data = stream.read(min(member.file_size, MAX_MEMBER) + 1)
        if len(data) != member.file_size:
            raise BadWheelError(f"member {member.filename!r} does not have the size that the archive states")
        total += len(data)
        path = target.joinpath(*PurePosixPath(member.filename).parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    leave_marks(archive, target)
    return total


def leave_marks(archive: zipfile.ZipFile, target: Path) -> None:
    """Empty files in the place of compiled modules, so that they are known to exist."""
    for name in archive.namelist():
        path = PurePosixPath(name)
        if path.suffix in EXTENSION_SUFFIXES and not path.parts[0].endswith(".data"):
            mark = target.joinpath(*path.parts)
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()


def unpack_wheel(wheel: Path, target: Path) -> int:
    """Unpack a wheel file's sources below ``target``; BadWheelError with the file's name on any fault."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            return unpack(archive, wanted_members(archive), target)
    except BadWheelError as error:
        raise BadWheelError(f"{wheel.name}: {error}") from None
    except (zipfile.BadZipFile, EOFError, NotImplementedError, ValueError, OSError) as error:
        raise BadWheelError(f"{wheel.name}: cannot be read as a wheel ({error})") from None
