"""The command: inputs, outputs, exit status, bad input; on releases that the cache or the index has."""

from __future__ import annotations

import json
import os
import shutil
import sys
import zipfile
from pathlib import Path

import pytest

from audit.support import audited, source
from verl_compat.audit import fetch
from verl_compat.cli import main

UPSTREAM_PACKAGES = ("torch", "megatron", "vllm", "verl", "mbridge", "transformers")


def run(*arguments: str) -> int:
    return main(["audit", *arguments])


def test_versions_give_findings_and_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--verl", "0.8.0", "--bridge", "0.4.2", "--core", "0.17.1", "--direct", "--json") == 1
    data = json.loads(capsys.readouterr().out)
    (audit,) = data["audits"]
    assert audit["providers"] == {"megatron-bridge": "0.4.2", "megatron-core": "0.17.1"}
    assert audit["counts"]["unguarded"] > audit["counts"]["left"] > 0
    assert {f["symbol"].rpartition(".")[2] for f in audit["findings"]} >= {"create_peft", "encoder_and_decoder"}


def test_nothing_audited_is_imported() -> None:
    before = set(sys.modules)
    audited("verl 0.9.1", "vllm 0.24.0")
    assert not {name for name in set(sys.modules) - before if name.split(".")[0] in UPSTREAM_PACKAGES}


def test_upstreams_are_audited_on_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    run("--verl", "0.9.1", "--bridge", "0.5.1", "--core", "0.17.1", "--json")
    audits = json.loads(capsys.readouterr().out)["audits"]
    assert [a["consumer"] for a in audits] == ["verl", "megatron-bridge"]
    assert audits[1]["counts"]["unguarded"] >= 56


def test_folder_and_stated_version_give_the_same_answer(capsys: pytest.CaptureFixture[str]) -> None:
    folder = source("verl", "0.8.0").root
    run("--verl", str(folder), "--bridge", "0.4.2", "--direct", "--json")
    one = json.loads(capsys.readouterr().out)["audits"][0]
    run("--verl", f"{folder}/verl@0.8.0", "--bridge", "0.4.2", "--direct", "--json")
    two = json.loads(capsys.readouterr().out)["audits"][0]
    assert one["consumer_version"] == two["consumer_version"] == "0.8.0"
    assert one["findings"] == two["findings"] != []


def test_any_other_code_base(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    package = tmp_path / "trainer"
    package.mkdir()
    (package / "run.py").write_text("from megatron.bridge.peft.utils import create_peft\n")
    assert run("--consumer", str(tmp_path), "--bridge", "0.4.2", "--json") == 0  # verl-compat adds the name
    (finding,) = json.loads(capsys.readouterr().out)["audits"][0]["findings"]
    assert (finding["file"], finding["line"]) == ("trainer/run.py", 1)
    assert finding["repaired_by"] == ["bridge_lt_0_5_peft_helpers"]
    assert run("--consumer", str(tmp_path), "--bridge", "0.5.1") == 0
    assert "0 unguarded" in capsys.readouterr().out


def test_matrix_says_since_when(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--matrix", "--verl", "0.8.0,0.9.1", "--vllm", "0.17.1,0.20.2,0.24.0", "--json") == 1
    cells = json.loads(capsys.readouterr().out)["cells"]
    assert len(cells) == 6
    since = {
        f["symbol"].rpartition(".")[2]: f["since"]
        for cell in cells for f in cell["findings"]
        if cell["provider_version"] == "0.24.0" and f["file"].endswith("vllm_modelopt_patch.py")
    }  # fmt: skip
    assert since["MarlinExperts"] == "0.24.0"
    assert run("--matrix", "--verl", "0.9.1", "--bridge", "0.4.2,0.5.1", "--markdown") in (0, 1)
    row = capsys.readouterr().out.strip().splitlines()[-1]
    assert row.startswith("| verl 0.9.1 | 5/")
    assert row.endswith("| 0/0 |")


def test_baseline_accepts_what_is_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--verl", "0.9.1", "--vllm", "0.24.0", "--direct")
    file = tmp_path / "base.json"
    assert run(*options, "--write-baseline", str(file)) == 0
    assert run(*options, "--baseline", str(file)) == 0
    data = json.loads(file.read_text())
    gone = data["findings"].pop()
    file.write_text(json.dumps(data))
    capsys.readouterr()
    assert run(*options, "--baseline", str(file), "--json") == 1
    audits = json.loads(capsys.readouterr().out)["audits"]
    left = [f for a in audits for f in a["findings"] if f["guard"] == "none" and not f["repaired_by"]]
    assert {f["symbol"] for f in left} == {gone["symbol"]}


def test_table_and_markdown_name_place_symbol_and_adapter(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--verl", "0.9.1", "--bridge", "0.4.2", "--direct")
    run(*options, "--markdown")
    text = capsys.readouterr().out
    assert "| `verl/workers/config/megatron_peft.py:28` | `megatron.bridge.peft.utils.create_peft`" in text
    assert "`bridge_lt_0_5_peft_helpers`" in text
    run(*options, "--all")
    assert "undecided" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--verl", "0.9.7", "--vllm", "0.24.0"], "0.9.7 does not exist; nearest:"),
        (["--verl", "new", "--vllm", "0.24.0"], "expected one like"),
        (["--verl", "/no/such/folder", "--vllm", "0.24.0"], "no such folder or wheel"),
        (["--verl", "0.9.1"], "nothing to audit"),
        (["--consumer", "/no/such/folder", "--vllm", "0.24.0"], "no such folder"),
        (["--verl", "0.9.1", "--vllm", "0.24.0", "--baseline", "/no/such/file"], "--write-baseline"),
        (["--matrix", "--verl", "all"], "needs versions"),
        (["--matrix", "--verl", "0.9.1", "--bridge", "nonsense"], "not a version"),
        (["--matrix", "--verl", "0.9.1", "--bridge", ","], "names no version"),
        (["--verl", "0.9.0,0.9.1", "--bridge", "0.4.2"], "--matrix"),
        (["--verl", "9" * 5000, "--bridge", "0.4.2"], "5000 characters; expected a version"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_status_2(options: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*options) == 2
    told = capsys.readouterr()
    assert words in told.err
    assert told.err.count("\n") == 1
    assert told.out == ""


def test_folder_of_another_project(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "other").mkdir()
    assert run("--verl", str(tmp_path), "--vllm", "0.24.0") == 2
    assert "holds no verl" in capsys.readouterr().err


def test_no_network_is_said_and_the_cache_still_serves(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source("vllm", "0.24.0"), source("verl", "0.9.1")
    monkeypatch.setenv("PIP_PROXY", "http://127.0.0.1:9")  # nothing listens there
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    assert run("--verl", "0.9.1", "--vllm", "0.24.0", "--direct") == 1
    capsys.readouterr()
    with pytest.raises(fetch.AuditError, match="cannot be reached"):
        fetch.fetch("vllm", "0.24.0", cache=tmp_path)


def test_one_distribution_alone_says_what_to_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--verl", "0.9.1") == 2
    told = capsys.readouterr().err
    assert "verl 0.9.1 alone" in told
    assert "--bridge installed" in told


def test_an_empty_consumer_is_an_error_and_not_clean(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--consumer", str(tmp_path), "--bridge", "0.4.2") == 2
    assert "holds no Python file" in capsys.readouterr().err


def test_a_pipe_in_the_consumer_is_not_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "real.py").write_text("import os\n")
    os.mkfifo(tmp_path / "pipe.py")
    assert run("--consumer", str(tmp_path), "--bridge", "0.4.2") == 0
    assert "pipe.py" in capsys.readouterr().out


def test_a_cache_entry_whose_tree_is_gone_is_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cleaner of temporary files takes files and leaves others; an empty tree would look clean."""
    wheel = tmp_path / "verl-0.9.1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("verl/__init__.py", "")
        archive.writestr("verl-0.9.1.dist-info/METADATA", "Name: verl\nVersion: 0.9.1\n")
        archive.writestr("verl-0.9.1.dist-info/WHEEL", "Wheel-Version: 1.0\n")
    done = fetch.unpacked(wheel, "verl", cache=tmp_path / "cache")
    shutil.rmtree(done.root)
    again = fetch.unpacked(wheel, "verl", cache=tmp_path / "cache")
    assert not again.cached
    assert (again.root / "verl/__init__.py").is_file()


def test_a_table_of_patch_targets_is_repaired_with_the_function_that_reads_it() -> None:
    """verl hands its NVFP4 patch targets to ``patch()`` from a table; the adapter replaces the function."""
    found = [f for f in audited("verl 0.9.1", "vllm 0.24.0").findings if f.scope.endswith("vllm_patch._PATCH_TARGETS")]
    assert len(found) == 2
    assert {f.repaired_by for f in found} == {("verl_ge_0_7_1_qat_nvfp4_on_marlin",)}
