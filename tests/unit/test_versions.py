from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from support.world import World
from verl_compat.locate import find_module, read_version_text
from verl_compat.registry import upstreams
from verl_compat.versions import base_version, below_range, detect, in_range


@pytest.mark.parametrize(
    ("text", "base"),
    [
        ("0.5.0rc1", "0.5.0"),
        ("0.5.0.dev3", "0.5.0"),
        ("0.5.0+0123abc", "0.5.0"),
        ("0.5.0rc0+oldhash", "0.5.0"),
        ("0.4.2.post1", "0.4.2"),
        ("unknown", None),
        ("", None),
        (None, None),
    ],
)
def test_base(text: str | None, base: str | None) -> None:
    assert base_version(text) == (Version(base) if base else None)


releases = st.tuples(*[st.integers(0, 20)] * 3).map(lambda parts: ".".join(map(str, parts)))
suffixes = st.sampled_from(["", "rc1", ".dev3", "a2", "+sha", "rc1+sha", ".post1"])


@given(releases, suffixes)
def test_a_split_leaves_no_hole_and_no_overlap(release: str, suffix: str) -> None:
    """The rc hole: plain PEP 440 has versions that match neither ``<0.5`` nor ``>=0.5``."""
    version = base_version(release + suffix)
    assert version is not None
    assert in_range(version, "<0.5") is not in_range(version, ">=0.5")


def test_below() -> None:
    assert below_range(Version("0.2"), ">=0.3,<0.5")
    assert not below_range(Version("0.5"), ">=0.3,<0.5")
    assert not below_range(Version("0.2"), "<0.5")
    assert below_range(Version("0.1"), "==0.2.*")


def test_metadata_is_believed_when_the_files_belong_to_it(world: World) -> None:
    folder = world.package("up", version="0.4.2")
    found = detect(upstreams()["up"])
    assert (found.raw, found.source, found.location) == ("0.4.2", "metadata", str(folder))


def test_clone_on_the_path_wins_over_metadata(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed 0.4.2 and, earlier on PYTHONPATH, a checkout that says 0.5.0rc0."""
    world.package("up", version="0.4.2")
    clone = tmp_path / "clone" / "up"
    clone.mkdir(parents=True)
    (clone / "__init__.py").touch()
    (clone / "package_info.py").write_text("MAJOR = 0\nMINOR = 5\nPATCH = 0\nPRE_RELEASE = 'rc0'\n")
    monkeypatch.syspath_prepend(str(clone.parent))
    found = detect(upstreams()["up"])
    assert (found.raw, found.source, found.location) == ("0.5.0rc0", "file", str(clone))
    (clone / "package_info.py").unlink()
    found = detect(upstreams()["up"])
    assert (found.raw, found.source) == ("0.4.2", "unverified")


def test_no_metadata_at_all(world: World) -> None:
    world.package("up", version="0.4.7", metadata=False)
    assert (detect(upstreams()["up"]).raw, detect(upstreams()["up"]).source) == ("0.4.7", "file")


def test_checkout_that_states_no_version(world: World) -> None:
    world.package("up", version=None)
    found = detect(upstreams()["up"])
    assert (found.raw, found.source, found.base) == (None, "unverified", None)


def test_missing(world: World) -> None:
    folder = world.package("up")
    (folder / "__init__.py").unlink()
    folder.rmdir()
    assert detect(upstreams()["up"]).missing


def test_broken_dist_info(world: World) -> None:
    world.package("up")
    for file in world.site.glob("up-*.dist-info/METADATA"):
        file.unlink()
    found = detect(upstreams()["up"])
    assert found.raw is None
    assert found.base is None


@pytest.mark.parametrize(
    ("name", "text", "version"),
    [
        ("version", "0.9.1\n", "0.9.1"),
        ("a.py", "__version__ = version = '0.24.0'\n", "0.24.0"),
        ("a.py", "MAJOR = 0\nMINOR = 16\nPATCH = 1\nPRE_RELEASE = ''\n", "0.16.1"),
        ("a.py", "import os\n__version__ = os.getenv('V')\n", None),
        ("a.py", "def broken(:\n", None),
    ],
)
def test_version_text(tmp_path: Path, name: str, text: str, version: str | None) -> None:
    (tmp_path / name).write_text(text)
    assert read_version_text(tmp_path, ("absent.py", name)) == version


def test_finding_imports_nothing(world: World) -> None:
    world.package("up", init="raise SystemError('imported')", leaf="raise SystemError('imported')")
    spec = find_module("up.leaf")
    assert spec is not None
    assert spec.origin == str(world.site / "up" / "leaf.py")
    assert "up" not in sys.modules
    assert find_module("up.absent") is None
    assert find_module("absent.leaf") is None
