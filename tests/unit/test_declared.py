"""Releases outside what others declare: base requirements, extras, markers, and metadata that is not to be believed."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.world import World
from verl_compat.declared import outside
from verl_compat.registry import upstreams
from verl_compat.versions import detect


def declare(world: World, *lines: str) -> None:
    info = world.site / "up-0.4.2.dist-info" / "METADATA"
    info.write_text(info.read_text() + "".join(f"Requires-Dist: {line}\n" for line in lines))


def said(*libraries: str) -> list[str]:
    return outside({dist: detect(upstreams()[dist]) for dist in ("up", *libraries)}, libraries)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ((), None),
        (("lib",), None),
        (("lib>=4",), None),
        (("lib<=5.3,>=5",), "<=5.3,>=5"),
        (("Lib<4.57",), "<4.57"),
        (("lib!=4.57.6,<5",), "!=4.57.6,<5"),
        (("lib<4; python_version < '3'",), None),
        (("lib<4; python_version > '3'",), "<4"),
        (('lib==5.9.0; extra == "a"',), "==5.9.0 (with the extra a)"),
        (('lib==5.9.0; extra == "a"', 'lib==5.8.0; extra == "b"'), "==5.8.0 or ==5.9.0 (with the extra a or b)"),
        (('lib==5.9.0; extra == "a"', 'lib==4.57.6; extra == "b"'), None),
        (("lib>=4", 'lib==5.9.0; extra == "a"'), None),
        (("lib", 'lib==5.9.0; extra == "a"'), "==5.9.0 (with the extra a)"),
        (("other<1", "no requirement at all"), None),
    ],
)
def test_what_is_said_of_a_release(world: World, lines: tuple[str, ...], expected: str | None) -> None:
    world.package("up")
    world.package("lib", version="4.57.6")
    declare(world, *lines)
    text = f"lib 4.57.6 is outside what up 0.4.2 declares: {expected}"
    assert said("lib") == ([text] if expected else [])


def test_what_is_missing_or_states_no_version_is_not_spoken_of(world: World) -> None:
    world.package("up")
    declare(world, "lib<1", "gone<1")
    world.package("lib", version="nightly-build")
    world.package("gone")
    (world.site / "gone" / "__init__.py").unlink()
    (world.site / "gone").rmdir()
    assert said("lib", "gone") == []


def test_a_clone_is_not_measured_by_the_metadata_of_another_release(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.package("up")
    world.package("lib", version="4.57.6")
    declare(world, "lib<1")
    assert said("lib")
    clone = tmp_path / "clone" / "up"
    clone.mkdir(parents=True)
    (clone / "__init__.py").write_text("")
    (clone / "package_info.py").write_text('__version__ = "0.5.0"\n')
    monkeypatch.syspath_prepend(str(clone.parent))
    assert said("lib") == []
