"""The fetcher's cache and its refusals, without a network."""

from __future__ import annotations

import stat
import struct
import threading
import zipfile
from pathlib import Path

import pytest
from packaging.version import Version

from verl_compat.audit import fetch, wheels
from verl_compat.audit.errors import AuditError, BadWheelError, NoNetworkError, NoSuchVersionError
from verl_compat.audit.remote import merge


def make_wheel(folder: Path, members: dict[str, bytes], name: str = "demo-1.0-py3-none-any.whl") -> Path:
    path = folder / name
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in members.items():
            archive.writestr(member, data)
    return path


def test_keeps_sources_metadata_and_version_texts_only(tmp_path: Path) -> None:
    members = {
        "demo/__init__.py": b"x = 1\n",
        "demo/lib.so": b"\0" * 100,
        "demo/version/version": b"1.0\n",
        "demo-1.0.data/scripts/run.py": b"",
        "demo-1.0.dist-info/METADATA": b"Name: demo\n",
        "demo-1.0.dist-info/RECORD": b"",
    }
    done = fetch.unpacked(make_wheel(tmp_path, members), "Demo", cache=tmp_path / "cache")
    files = {str(path.relative_to(done.root)) for path in done.root.rglob("*") if path.is_file()}
    mark = "demo/lib.so"  # compiled modules are known to exist, by an empty file
    assert files == {"demo/__init__.py", "demo/version/version", "demo-1.0.dist-info/METADATA", mark}
    assert (done.root / mark).stat().st_size == 0
    assert (done.dist, done.version, done.cached) == ("demo", "1.0", False)
    assert fetch.unpacked(tmp_path / "demo-1.0-py3-none-any.whl", "demo", cache=tmp_path / "cache").cached


@pytest.mark.parametrize("name", ["../evil.py", "/etc/evil.py", "a/../../evil.py", "C:/evil.py", "a\\..\\evil.py"])
def test_refuses_paths_that_leave_the_archive(tmp_path: Path, name: str) -> None:
    wheel = make_wheel(tmp_path, {"placeholder.py": b""})
    info = zipfile.ZipInfo("x.py")
    info.filename = name
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(info, b"evil = 1\n")
    with pytest.raises(BadWheelError, match="leaves the archive"):
        fetch.unpacked(wheel, "demo", cache=tmp_path / "cache")
    assert not list(tmp_path.rglob("*evil*"))


def test_refuses_symbolic_links(tmp_path: Path) -> None:
    wheel = tmp_path / "demo-1.0-py3-none-any.whl"
    info = zipfile.ZipInfo("demo/link.py")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(info, "/etc/passwd")
    with pytest.raises(BadWheelError, match="symbolic link"):
        fetch.unpacked(wheel, "demo", cache=tmp_path / "cache")


def test_refuses_a_zip_bomb(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, {"demo/big.py": bytes(wheels.MAX_MEMBER + 1)})
    assert wheel.stat().st_size < 2**20
    with pytest.raises(BadWheelError, match="limit"):
        fetch.unpacked(wheel, "demo", cache=tmp_path / "cache")


def test_refuses_a_member_whose_header_lies_about_its_size(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, {"demo/big.py": bytes(5_000_000)})
    data = wheel.read_bytes()
    real, stated = struct.pack("<L", 5_000_000), struct.pack("<L", 10)
    assert data.count(real) == 2  # local header and central directory
    wheel.write_bytes(data.replace(real, stated))
    with pytest.raises(BadWheelError):
        fetch.unpacked(wheel, "demo", cache=tmp_path / "cache")


def test_refuses_too_many_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels, "MAX_MEMBERS", 2)
    wheel = make_wheel(tmp_path, {f"demo/m{i}.py": b"" for i in range(3)})
    with pytest.raises(BadWheelError, match="3 files"):
        fetch.unpacked(wheel, "demo", cache=tmp_path / "cache")


def test_refuses_another_projects_wheel_and_what_is_no_wheel(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, {"demo/__init__.py": b""})
    with pytest.raises(BadWheelError, match="wheel of demo, expected one of other"):
        fetch.unpacked(wheel, "other", cache=tmp_path / "cache")
    broken = tmp_path / "demo-2.0-py3-none-any.whl"
    broken.write_bytes(b"not a zip")
    with pytest.raises(BadWheelError, match="cannot be read as a wheel"):
        fetch.unpacked(broken, "demo", cache=tmp_path / "cache")
    with pytest.raises(BadWheelError, match="expected NAME-VERSION"):
        fetch.unpacked(tmp_path / "demo.whl", "demo", cache=tmp_path / "cache")
    assert not list((tmp_path / "cache").rglob("source.json")), "a refused wheel leaves no cache entry"


def test_processes_that_fetch_the_same_release_see_only_complete_entries(tmp_path: Path) -> None:
    members = {f"demo/m{i}.py": b"x = 1\n" * 50 for i in range(200)}
    wheel = make_wheel(tmp_path, members)
    seen: list[int] = []
    errors: list[BaseException] = []

    def use() -> None:
        try:
            done = fetch.unpacked(wheel, "demo", cache=tmp_path / "cache")
            seen.append(len(list(done.root.rglob("*.py"))))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=use) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert seen == [200] * 6
    assert not list((tmp_path / "cache").rglob(".work-*"))


def test_an_interrupted_fetch_is_not_a_cache_entry(tmp_path: Path) -> None:
    base = tmp_path / fetch.LAYOUT / "demo"

    def interrupted() -> None:
        with fetch.building(base) as work:
            (work / "tree" / "half.py").write_text("x")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not list(base.rglob("half.py"))
    (base / "1.0" / "tree").mkdir(parents=True)  # an entry without its mark
    assert fetch.cached_versions("demo", tmp_path) == ()


def test_a_cache_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(AuditError, match="VERL_COMPAT_CACHE"):
        fetch.unpacked(make_wheel(tmp_path, {"d.py": b""}), "demo", cache=tmp_path / "file" / "cache")


def test_names_and_versions_are_checked_before_pip_sees_them() -> None:
    with pytest.raises(AuditError, match="not a distribution name"):
        fetch.fetch("--index-url=x", "1")
    with pytest.raises(NoSuchVersionError, match="not a version"):
        fetch.fetch("demo", "1; rm")


@pytest.mark.parametrize(
    ("output", "error", "words"),
    [
        (
            "ERROR: No match (from versions: 0.1, 0.4.0,\n 0.5.0, 0.6.0, 1.0)",
            NoSuchVersionError,
            "0.4.0, 0.5.0, 0.6.0, 1.0",
        ),
        (
            "WARNING: Retrying (Retry(total=1)) NewConnectionError (from versions: none)",
            NoNetworkError,
            "0.3.0",
        ),
        ("ERROR: No match (from versions: none)", NoSuchVersionError, "no wheel"),
        ("ERROR: disk on fire", AuditError, "disk on fire"),
    ],
)
def test_pip_failures_are_told_apart(output: str, error: type[AuditError], words: str) -> None:
    told = fetch._explain("demo", Version("0.5.2"), output, ("0.3.0",))
    assert type(told) is error
    assert words in str(told)


def test_nearest_versions() -> None:
    offered = ["0.3", "0.4", "0.5.0", "0.5.1", "0.6", "0.7", "nonsense"]
    assert fetch.nearest(Version("0.5.2"), offered) == ("0.5.0", "0.5.1", "0.6", "0.7")
    assert fetch.nearest(Version("0.9"), offered) == ("0.5.0", "0.5.1", "0.6", "0.7")
    assert fetch.nearest(Version("0.1"), offered) == ("0.3", "0.4", "0.5.0", "0.5.1")


def test_neighbouring_ranges_are_read_together() -> None:
    assert merge([(0, 10), (12, 20), (100, 110)], gap=5) == [(0, 20), (100, 110)]
    assert merge([(100, 110), (0, 10)], gap=1000) == [(0, 110)]
    assert merge([(0, 10), (10, 20), (20, 30)], gap=5, piece=20) == [(0, 20), (20, 30)]
