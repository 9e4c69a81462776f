"""Get the Python files of a released wheel into a cache, without installing anything.

``pip`` resolves the wheel and says where it is (so its indexes, mirrors, proxies and
credentials are honoured); only the Python files are read from there where the server can
send byte ranges, else pip downloads the wheel and the rest is thrown away.

A cache entry appears by one rename when it is complete, so a half-written one is never
seen and processes may fetch the same release at the same time.

    python -m verl_compat.audit.fetch NAME==VERSION ...      prints one folder per line
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from . import remote, wheels
from .errors import AuditError, BadWheelError, NoNetworkError, NoSuchVersionError

CACHE_VARIABLE = "VERL_COMPAT_CACHE"
LAYOUT = "sources-2"
PYTHONS = ("3.12", "3.11", "3.10", "3.13")
# pip takes each tag as it is: a newer glibc does not stand for the older ones.
PLATFORMS = (
    *(f"manylinux_2_{minor}_x86_64" for minor in range(42, 4, -1)),
    "manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64", "linux_x86_64",
)  # fmt: skip
PIP_TIMEOUT = 1800
NETWORK_SIGNS = re.compile(
    r"NewConnectionError|ConnectionError|ConnectTimeout|Max retries|Retrying \(|ProxyError|Name or service|"
    r"name resolution|Network is unreachable|Connection refused|Read timed out|SSLError|Could not fetch URL"
)


@dataclass(frozen=True)
class Fetched:
    """The Python files of one release.

    Attributes:
        dist, version: normalised name and the release's version.
        root: folder that holds the packages, as ``site-packages`` would.
        cached: it was there before.
    """

    dist: str
    version: str
    root: Path
    cached: bool


def cache_dir() -> Path:
    """``VERL_COMPAT_CACHE``, else ``verl-compat`` in the user's cache folder."""
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return Path(named).expanduser()
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "verl-compat"


def fetch(dist: str, version: str, *, cache: Path | None = None) -> Fetched:
    """The Python files of ``dist`` at exactly ``version``, from the cache or from the index.

    Raises :class:`NoSuchVersionError` (lists the nearest), :class:`NoNetworkError`, :class:`BadWheelError`
    or plain :class:`AuditError` (no pip, cache not writable).
    """
    name = canonicalize_name(dist)
    if not re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", name):
        raise AuditError(f"{dist!r} is not a distribution name")
    wanted = parse_version(name, version)
    base = (cache or cache_dir()) / LAYOUT / name
    entry = base / str(wanted)
    if is_complete(entry):
        return Fetched(name, str(wanted), entry / "tree", cached=True)
    with building(base) as work:
        _fill(name, wanted, work, known=cached_versions(name, cache))
        commit(work, entry)
    return Fetched(name, str(wanted), entry / "tree", cached=False)


def unpacked(wheel: Path, dist: str, *, cache: Path | None = None) -> Fetched:
    """The Python files of a wheel file that belongs to ``dist``."""
    name = wheels.check_project(wheel.name, dist)
    try:
        state = wheel.stat()
    except OSError as error:
        raise BadWheelError(f"{wheel}: {error.strerror}; expected a wheel file") from None
    key = f"{wheel.resolve()}\0{state.st_size}\0{state.st_mtime_ns}"
    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    base = (cache or cache_dir()) / LAYOUT / "files"
    entry = base / f"{name.dist}-{name.version}-{digest}"
    cached = is_complete(entry)
    if not cached:
        with building(base) as work:
            wheels.unpack_wheel(wheel, work / "tree")
            write_source(work, wheel.name)
            commit(work, entry)
    return Fetched(name.dist, name.version, entry / "tree", cached)


def cached_versions(dist: str, cache: Path | None = None) -> tuple[str, ...]:
    """Releases of ``dist`` that the cache holds, oldest first."""
    base = (cache or cache_dir()) / LAYOUT / canonicalize_name(dist)
    found = [entry.name for entry in base.glob("*") if is_complete(entry) and is_version(entry.name)]
    return tuple(sorted(found, key=Version))


def is_version(text: str) -> bool:
    """Whether a text is a version by PEP 440."""
    try:
        Version(text)
    except InvalidVersion:
        return False
    return True


def parse_version(dist: str, text: str) -> Version:
    """``text`` as a version; NoSuchVersionError when it is none."""
    try:
        return Version(text)
    except InvalidVersion:
        shown = text if len(text) < 80 else text[:77] + "..."
        hint = "; lists and 'all' need --matrix" if "," in text or text == "all" else ""
        raise NoSuchVersionError(f"{dist}: {shown!r} is not a version; expected one like 0.5.1{hint}") from None


# --- the cache ---------------------------------------------------------------


def is_complete(entry: Path) -> bool:
    """Whether a cache entry is there; entries appear only when complete."""
    if entry.name.startswith(".") or not (entry / "source.json").is_file():
        return False
    return any((entry / "tree").glob("*/"))  # a cleaner of temporary files may have taken it


@contextmanager
def building(base: Path) -> Iterator[Path]:
    """A private folder next to the entries, removed at the end unless it was committed."""
    try:
        base.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=".work-", dir=base))
        (work / "tree").mkdir()
    except OSError as error:
        raise AuditError(
            f"cache folder {base} cannot be written ({error.strerror}); set {CACHE_VARIABLE} to another"
        ) from None
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def commit(work: Path, entry: Path) -> None:
    """Make the finished work folder the cache entry; the first of several processes wins."""
    try:
        work.rename(entry)
    except OSError:
        if not is_complete(entry):  # what is left of one that was partly deleted
            shutil.rmtree(entry, ignore_errors=True)
            work.rename(entry)


def write_source(work: Path, wheel: str, sha256: str = "") -> None:
    """Note what the entry was made from; written last, it marks the entry complete."""
    note = {"wheel": wheel, "sha256": sha256}
    (work / "source.json").write_text(json.dumps(note, sort_keys=True) + "\n", encoding="utf-8")


# --- pip ---------------------------------------------------------------------


def _fill(name: str, version: Version, work: Path, known: tuple[str, ...]) -> None:
    url, sha256, python = _resolve(name, version, known)
    filename = url.rsplit("/", 1)[-1].partition("#")[0]
    wheels.check_project(filename, name)
    archive = work / filename
    try:
        remote.sparse_copy(url, archive)
    except remote.RangesError:
        archive.unlink(missing_ok=True)
        archive = _download(name, version, python, work)
    wheels.unpack_wheel(archive, work / "tree")
    archive.unlink()
    write_source(work, filename, sha256)


def _resolve(name: str, version: Version, known: tuple[str, ...]) -> tuple[str, str, str]:
    """URL, hash and Python version of the wheel, from pip's own report."""
    outputs = []
    for python in PYTHONS:  # a wheel may be built for one Python only
        with tempfile.TemporaryDirectory() as nowhere:
            done = _pip("install", "--dry-run", "--quiet", "--ignore-installed", "--report", "-",
                        "--target", nowhere, *_selection(python), f"{name}=={version}")  # fmt: skip
        if done.returncode == 0:
            info = json.loads(done.stdout)["install"][0]["download_info"]
            hashes = info.get("archive_info", {}).get("hashes", {})
            return info["url"], hashes.get("sha256", ""), python
        outputs.append(done.stderr)
        if NETWORK_SIGNS.search(done.stderr):
            break
    raise _explain(name, version, "\n".join(outputs), known)


def _download(name: str, version: Version, python: str, work: Path) -> Path:
    folder = work / "download"
    done = _pip("download", "--quiet", "--dest", str(folder), *_selection(python), f"{name}=={version}")
    found = sorted(folder.glob("*.whl")) if folder.is_dir() else []
    if done.returncode or not found:
        raise _explain(name, version, done.stderr, ())
    return found[0]


def _selection(python: str) -> list[str]:
    platforms = [item for platform in PLATFORMS for item in ("--platform", platform)]
    return ["--no-deps", "--only-binary=:all:", "--python-version", python, *platforms]


def _pip(*arguments: str) -> subprocess.CompletedProcess[str]:
    if importlib.util.find_spec("pip") is not None:
        command = [sys.executable, "-m", "pip"]
    elif (program := shutil.which("pip") or shutil.which("pip3")) is not None:
        command = [program]
    else:
        raise AuditError("pip was not found; it fetches the wheels: install it, or give wheel files")
    command += [*arguments, "--no-input", "--disable-pip-version-check", "--retries", "2"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=PIP_TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        raise NoNetworkError(f"pip gave no answer within {PIP_TIMEOUT} s; check the network") from None


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _explain(name: str, version: Version, output: str, known: tuple[str, ...]) -> AuditError:
    offered = re.findall(r"\(from versions: ([^)]*)\)", _one_line(output))
    versions = [item for text in offered if text != "none" for item in text.split(", ")]
    if versions:
        near = nearest(version, versions)
        return NoSuchVersionError(f"{name} {version} does not exist; nearest: {', '.join(near)}", near)
    if NETWORK_SIGNS.search(output):
        held = ", ".join(known) or "nothing"
        return NoNetworkError(
            f"{name} {version}: the package index cannot be reached and the cache does not hold it "
            f"(it holds: {held}). Connect, or give a wheel file or folder"
        )
    if offered:
        return NoSuchVersionError(f"{name} {version}: the package index has no wheel of {name} for Linux x86-64")
    return AuditError(f"pip could not find {name} {version}: {_one_line(output)[-500:]}")


def nearest(version: Version, offered: list[str], count: int = 4) -> tuple[str, ...]:
    """The offered versions closest to ``version`` in order: those just below and just above."""
    ordered = sorted({Version(item) for item in offered if is_version(item)})
    below = [item for item in ordered if item < version]
    above = [item for item in ordered if item > version]
    half = count // 2
    low, high = below[-half:], above[:half]
    low = below[-(count - len(high)) :] if len(high) < half else low
    high = above[: count - len(low)] if len(low) < half else high
    return tuple(str(item) for item in [*low, *high])


def main(arguments: list[str] | None = None) -> int:
    """Fetch each ``NAME==VERSION`` and print its folder."""
    wanted = sys.argv[1:] if arguments is None else arguments
    try:
        for text in wanted:
            name, _, version = text.partition("==")
            print(fetch(name, version).root, flush=True)
    except AuditError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
