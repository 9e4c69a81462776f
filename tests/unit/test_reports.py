from __future__ import annotations

import inspect
import json
import os
from pathlib import Path

import pytest

import verl_compat
from support.world import LEAF, World
from verl_compat import cli, engine
from verl_compat.merge import ReportError, merge
from verl_compat.processes import children
from verl_compat.records import Has, Lacks
from verl_compat.registry import upstreams
from verl_compat.report import predicted_status


@pytest.fixture
def _only_up(world: World) -> None:
    """Real upstreams out of sight, so that outputs are about ``up`` alone."""
    for dist in list(upstreams()):
        del upstreams()[dist]
    world.package("up", leaf=LEAF)


@pytest.mark.usefixtures("_only_up")
def test_status_of_a_process(world: World) -> None:
    world.backport()
    assert verl_compat.status().outcome("up_lt_0_5_new") == "pending"
    import up.leaf  # type: ignore[import-not-found]  # noqa: F401

    status = verl_compat.status()
    assert status.outcome("up_lt_0_5_new") == "applied"
    assert [(found.dist, found.raw, found.source) for found in status.versions] == [("up", "0.4.2", "metadata")]
    assert json.loads(json.dumps(status.to_dict()))["adapters"][0]["id"] == "up_lt_0_5_new"
    with pytest.raises(KeyError):
        status.outcome("no_such")


@pytest.mark.usefixtures("_only_up")
@pytest.mark.parametrize(
    ("needed", "outcome"),
    [
        (Lacks("new"), "would-apply"),
        (Lacks("Thing.gone"), "would-apply"),
        (Lacks("Thing.run"), "not-needed"),
        (Has("Thing.run", "helper"), "would-apply"),
        (Has("new"), "not-needed"),
    ],
)
def test_prediction_reads_the_source_and_imports_nothing(world: World, needed: Has | Lacks, outcome: str) -> None:
    import sys

    world.backport(needed=(needed,))
    assert predicted_status().outcome("up_lt_0_5_new") == outcome
    assert "up" not in sys.modules


@pytest.mark.usefixtures("_only_up")
def test_prediction_says_what_only_the_import_can_tell(world: World) -> None:
    (world.site / "up" / "leaf.py").write_text("from os.path import *\nclass Thing(Base): pass\n")
    for feature in (Lacks("Thing.run"), Lacks("new")):
        world.backport(f"up_{feature.paths[0].lower().replace('.', '_')}", needed=(feature,))
    assert {adapter.outcome for adapter in predicted_status().adapters} == {"pending"}


@pytest.mark.usefixtures("_only_up")
def test_cli_status_explain_list(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.backport(reports=("up#12",))
    assert cli.main(["status", "--json"]) == 0
    status = json.loads(capsys.readouterr().out)
    assert status["predicted"] is True
    assert status["adapters"][0]["outcome"] == "would-apply"
    assert cli.main(["status"]) == 0
    assert "would-apply" in capsys.readouterr().out
    for word in ("up_lt_0_5_new", "UP#12"):
        assert cli.main(["explain", word]) == 0
        text = capsys.readouterr().out
        for part in ("would-apply", "made up", "example.invalid/pr/1", "target lacks new: yes", "up>=0.3.0,<0.5: yes"):
            assert part in text, part
    assert cli.main(["explain", "up_lt_0_5_new", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["here"]["outcome"] == "would-apply"
    assert cli.main(["list"]) == 0
    assert "up_lt_0_5_new" in capsys.readouterr().out
    assert cli.main(["list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["family"] == "up"


@pytest.mark.usefixtures("_only_up")
def test_explain_unknown_id(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.backport()
    assert cli.main(["explain", "up_lt_0_5_now"]) == 2
    assert "Did you mean up_lt_0_5_new" in caplog.text


@pytest.mark.usefixtures("_only_up")
def test_report_of_a_process_and_merging(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "reports"
    monkeypatch.setenv("VERL_COMPAT_REPORT_DIR", str(folder))
    world.backport()
    import up.leaf  # type: ignore[import-not-found]  # noqa: F401

    (own,) = folder.glob("*.json")
    report = json.loads(own.read_text())
    assert report["pid"] == os.getpid()
    assert [adapter["outcome"] for adapter in report["adapters"]] == ["applied"]

    report["pid"], report["pythons"] = 1, {"4711": "python worker.py"}
    (folder / "other.json").write_text(json.dumps(report))
    report["pid"], report["active"] = 2, False
    (folder / "off.json").write_text(json.dumps(report | {"pythons": {}}))
    (folder / "half.json").write_text('{"schema": 1, "pi')
    (folder / "old.json").write_text('{"schema": 0}')
    merged = merge(folder)
    assert len(merged.processes) == 3
    assert merged.outcomes() == {"up_lt_0_5_new": {"applied": 3}}
    assert set(merged.unreadable) == {"half.json", "old.json"}
    assert sorted(where.partition(":")[2] for where in merged.silent) == ["2", "4711"]
    assert cli.main(["status", "--reports", str(folder)]) == 0
    assert "did not activate" in capsys.readouterr().out
    assert cli.main(["status", "--json", "--reports", str(folder)]) == 0
    assert json.loads(capsys.readouterr().out)["outcomes"]["up_lt_0_5_new"] == {"applied": 3}


def test_report_dir_that_cannot_be_written_is_one_warning(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("VERL_COMPAT_REPORT_DIR", str(tmp_path / "file"))
    world.package("up", leaf=LEAF)
    world.backport()
    import up.leaf  # type: ignore[import-not-found]

    assert up.leaf.new() == "shim"
    (record,) = caplog.records
    assert "no report was written" in record.message


@pytest.mark.parametrize("make", [False, True])
def test_reports_of_nothing(tmp_path: Path, make: bool, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "none"
    if make:
        folder.mkdir()
    with pytest.raises(ReportError):
        merge(folder)
    assert cli.main(["status", "--reports", str(folder)]) == 2
    assert "VERL_COMPAT_REPORT_DIR" in caplog.text


def test_children_are_seen() -> None:
    import subprocess
    import sys

    if not Path("/proc/self/task").is_dir():
        pytest.skip("no /proc on this system: children cannot be listed")
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert child.pid in children()
    finally:
        child.communicate(b"\n", timeout=30)


def test_public_names(world: World) -> None:
    from verl_compat.adapters import public

    with pytest.raises(AttributeError, match="no attribute 'no_such'"):
        _ = verl_compat.no_such
    world.package("up", leaf=LEAF + "\nown = 'own'\n")
    world.shims.shim = "shim"
    public.HELPERS["a"], public.HELPERS["b"] = ("up.leaf:own", "world_shims:shim"), ("up.leaf:no", "world_shims:shim")
    public.HELPERS["c"], public.HELPERS["d"] = ("up.gone:x", "world_shims:shim"), ("absent.leaf:x", "world_shims:shim")
    try:
        assert (verl_compat.a, verl_compat.b, verl_compat.c) == ("own", "shim", "shim")
        with pytest.raises(ImportError, match=r"verl_compat\.d works on absent\.leaf, which cannot be imported"):
            _ = verl_compat.d
        assert {"a", "b", "c", *public.OWN} <= set(dir(verl_compat))
        assert "d" not in dir(verl_compat)
        assert dict(inspect.getmembers(verl_compat))["a"] == "own"
    finally:
        for name in "abcd":
            del public.HELPERS[name]


def test_a_child_that_has_ended_is_still_accounted_for(world: World) -> None:
    import subprocess
    import sys

    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert child.pid in verl_compat.status().pythons
    child.communicate(b"\n", timeout=30)
    assert child.pid in verl_compat.status().pythons


def test_activation_is_idempotent(world: World) -> None:
    for _ in range(3):
        verl_compat.activate()
    import sys

    from verl_compat import _boot

    assert sum(isinstance(finder, _boot.Finder) for finder in sys.meta_path) == 1
    assert engine.activate() is None


@pytest.mark.parametrize("field", [{"pythons": ["a"]}, {"pythons": {"one": "python"}}, {"adapters": [1]}])
def test_a_damaged_report_is_named_and_the_others_are_read(tmp_path: Path, field: dict[str, object]) -> None:
    good = {"schema": 1, "pid": 1, "host": "h", "adapters": [], "active": True, "command": "c", "pythons": {}}
    (tmp_path / "bad.json").write_text(json.dumps({**good, **field}))
    with pytest.raises(ReportError, match=r"bad\.json"):
        merge(tmp_path)
    (tmp_path / "good.json").write_text(json.dumps(good))
    merged = merge(tmp_path)
    assert len(merged.processes) == 1
    assert list(merged.unreadable) == ["bad.json"]
