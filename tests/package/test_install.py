"""What gets installed, and what is left: wheel, sdist, editable, ``-t``, uninstalling."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UV = shutil.which("uv") or "uv"


def call(*args: object, **options: object) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([str(arg) for arg in args], capture_output=True, text=True, timeout=300, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stderr
    return done  # type: ignore[no-any-return]


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree as git has it, so that builds leave nothing in the checkout."""
    copy = tmp_path_factory.mktemp("source")
    listing = call("git", "ls-files", "-co", "--exclude-standard", cwd=ROOT).stdout.splitlines()
    for name in listing:
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name)
    return copy


@pytest.fixture(scope="session")
def built(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """sdist, and the wheel built from that sdist."""
    out = tmp_path_factory.mktemp("dist")
    call(sys.executable, "-m", "build", "--installer", "uv", "-o", out, source)
    return out


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """An interpreter of a fresh environment."""
    call(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv")
    return tmp_path / "venv" / "bin" / "python"


def install(python: Path, *what: object) -> None:
    call(UV, "pip", "install", "-q", "--python", python, *what)


def probe(python: Path | str, code: str, *flags: str, **options: object) -> str:
    """Run code; anything on stderr is a failure."""
    done = call(python, *flags, "-c", code, **options)
    assert done.stderr == ""
    return done.stdout.strip()


def site(python: Path) -> Path:
    (folder,) = python.parents[1].glob("lib/python*/site-packages")
    return folder


# a watched package that is not installed: the finder is fetched for it all the same
ACTIVE = (
    "import sys, importlib.util as u; u.find_spec('megatron')\n"
    "print(any(type(f).__module__ == 'verl_compat._boot' for f in sys.meta_path))"
)
PARTS = (
    "import verl_compat.engine, verl_compat.adapters.public, verl_compat.shims, verl_compat as v; print(v.__version__)"
)


def test_wheel_holds_all_three_folders_and_the_pth(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        record = archive.read(next(n for n in names if n.endswith("RECORD"))).decode()
        pth = archive.read("verl_compat.pth").decode("ascii")
    for folder, package in [("compat", ""), ("adapters", "adapters/"), ("shims", "shims/")]:
        files = {f"verl_compat/{package}{f.relative_to(ROOT / folder)}" for f in (ROOT / folder).rglob("*.py")}
        assert files <= names
    assert "verl_compat/py.typed" in names
    assert "verl_compat.pth,sha256=" in record
    assert not {n for n in names if n.startswith(("tests", "benchmarks", "examples"))}
    assert len(pth.splitlines()) == 1
    assert pth.startswith("import ")


def test_sdist_can_be_built_again(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"compat/_boot.py", "adapters/upstreams.py", "shims/__init__.py", "setup.py", "LICENSE"} <= names


def test_wheel_install_activates_and_uninstall_leaves_nothing(built: Path, python: Path) -> None:
    (wheel,) = built.glob("*.whl")
    assert probe(python, ACTIVE) == "False"
    install(python, wheel)
    assert probe(python, ACTIVE) == "True"
    assert probe(python, ACTIVE, "-I") == "True"
    assert probe(python, ACTIVE, "-S") == "False"
    assert probe(python, ACTIVE, env={**os.environ, "VERL_COMPAT": "off"}) == "False"
    assert probe(python, PARTS)
    call(python.parent / "verl-compat", "status")
    call(python.parent / "verl-compat", "list", "--json")
    call(UV, "pip", "uninstall", "-q", "--python", python, "verl-compat")
    assert list(site(python).glob("*verl_compat*")) == []
    assert not (python.parent / "verl-compat").exists()
    assert probe(python, ACTIVE) == "False"


def test_orphaned_pth_is_silent(built: Path, python: Path) -> None:
    (wheel,) = built.glob("*.whl")
    install(python, wheel)
    shutil.rmtree(site(python) / "verl_compat")
    assert (site(python) / "verl_compat.pth").is_file()
    assert probe(python, ACTIVE) == "False"


def test_editable_install(source: Path, python: Path) -> None:
    install(python, "-e", source)
    assert (site(python) / "verl_compat.pth").is_file()
    assert probe(python, ACTIVE) == "True"
    where = probe(python, "import verl_compat.engine, verl_compat.adapters, verl_compat.shims as s; print(s.__file__)")
    assert Path(where) == source / "shims" / "__init__.py"
    call(python.parent / "verl-compat", "list")
    call(UV, "pip", "uninstall", "-q", "--python", python, "verl-compat")
    assert list(site(python).glob("*verl_compat*")) == []
    assert probe(python, ACTIVE) == "False"


def test_development_on_an_editable_install(source: Path, python: Path) -> None:
    """``pip install -e .`` and ``pytest tests/unit``: those tests that ask how the package is installed."""
    install(python, "-e", source, "pytest>=8")
    names = ("test_layout", "test_records", "test_catalog", "test_engine")
    call(python, "-m", "pytest", "-q", *(f"tests/unit/{name}.py" for name in names), cwd=source)


def test_target_install_needs_another_door(built: Path, python: Path, tmp_path: Path) -> None:
    """``-t`` plus PYTHONPATH reads no ``.pth``; the entry points are found, and ``auto`` works."""
    (wheel,) = built.glob("*.whl")
    target = tmp_path / "target"
    install(python, "--target", target, wheel)
    env = {**os.environ, "PYTHONPATH": str(target)}
    assert probe(python, ACTIVE, env=env) == "False"
    assert probe(python, "import verl_compat.auto\n" + ACTIVE, env=env) == "True"
    groups = (
        "from importlib.metadata import entry_points as e\n"
        "print([x.value for g in ('verl.plugins', 'vllm.general_plugins') for x in e(group=g)])"
    )
    assert probe(python, groups, env=env) == "['verl_compat.auto', 'verl_compat.auto:door']"


def test_missing_dependency_does_not_stop_an_import(built: Path, python: Path, tmp_path: Path) -> None:
    """Installed with --no-deps: one line on stderr, and the upstream module imports."""
    (wheel,) = built.glob("*.whl")
    install(python, "--no-deps", wheel)
    target = call(python, "-c", "from verl_compat.adapters import TARGETS; print(sorted(TARGETS)[0])").stdout.strip()
    folder = tmp_path.joinpath("up", *target.split(".")[:-1])
    folder.mkdir(parents=True)
    (folder / f"{target.rpartition('.')[2]}.py").write_text("value = 1\n")
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "up")}
    done = call(python, "-c", f"import {target} as m; print(m.value)", env=env)
    assert done.stdout.strip() == "1"
    assert "packaging" in done.stderr
    assert len(done.stderr.strip().splitlines()) <= 2


def test_looking_does_not_ring_the_bell(built: Path, python: Path) -> None:
    """``status`` asks the finders where upstreams are; the process is active before and after."""
    (wheel,) = built.glob("*.whl")
    install(python, wheel)
    code = "import verl_compat; print([verl_compat.status().active for _ in range(2)], verl_compat.revert(), "
    assert probe(python, code + "verl_compat.status().active)") == "[True, True] None False"


def test_one_bell_hangs_in_a_virtual_environment(built: Path, python: Path) -> None:
    """``site`` executes the lines of a virtual environment's ``.pth`` files twice."""
    (wheel,) = built.glob("*.whl")
    install(python, wheel)
    code = "import sys; print(sum(type(found).__name__ == 'VerlCompatDoorbell' for found in sys.meta_path))"
    assert probe(python, code) == "1"
