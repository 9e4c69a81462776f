"""Each door of the package, in each kind of process: before Bridge is bound, or it is not a door."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from packaging.version import Version

from .conftest import EXPECTED, PROBE, SITE, VERL, answer, environment, run

HAS_PLUGINS = Version("0.9") <= VERL
needs_plugins = pytest.mark.skipif(not HAS_PLUGINS, reason="verl.plugins exists from verl 0.9.0 on")
no_plugins = pytest.mark.skipif(HAS_PLUGINS, reason="the plugin door would hide the one under test")


def test_pth_door_in_a_plain_process() -> None:
    assert answer(run("-c", PROBE)) == EXPECTED


def test_isolated_mode() -> None:
    """``-I`` still reads site directories; it ignores PYTHONPATH, so the stand-in is put on the path by hand."""
    stubs = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    code = f"import sys; sys.path[:0] = {stubs}\n" + "import sitecustomize\n" * bool(stubs) + PROBE
    assert answer(run("-I", "-c", code)) == EXPECTED


def test_no_site_is_not_covered() -> None:
    """``-S`` reads no ``.pth``; with no other door nothing is patched, and nothing is broken."""
    code = f"import sys; sys.path.append({str(SITE)!r})\nimport verl_compat\nprint('{{}}', verl_compat.status().active)"
    done = run("-S", "-c", code)
    assert done.stdout.split() == ["{}", "False"]


@needs_plugins
def test_plugin_door_from_a_target_folder(bare_python: Path, target_folder: Path) -> None:
    """``pip install -t`` and PYTHONPATH: no ``.pth`` is read there, ``verl.plugins`` is."""
    path = os.pathsep.join([str(target_folder), os.environ.get("PYTHONPATH", "")])
    done = run("-c", PROBE, env=environment(PYTHONPATH=path), python=str(bare_python))
    assert answer(done) == EXPECTED


def test_external_module_door(bare_python: Path, target_folder: Path) -> None:
    """``VERL_USE_EXTERNAL_MODULES`` reaches every verl from 0.7 on."""
    path = os.pathsep.join([str(target_folder), os.environ.get("PYTHONPATH", "")])
    env = environment(PYTHONPATH=path, VERL_USE_EXTERNAL_MODULES="verl_compat.auto", VERL_USE_EXTERNAL_PLUGINS="none")
    assert answer(run("-c", PROBE, env=env, python=str(bare_python))) == EXPECTED


def test_import_by_hand(bare_python: Path, target_folder: Path) -> None:
    path = os.pathsep.join([str(target_folder), os.environ.get("PYTHONPATH", "")])
    env = environment(PYTHONPATH=path, VERL_USE_EXTERNAL_PLUGINS="none")
    assert answer(run("-c", "import verl_compat.auto\n" + PROBE, env=env, python=str(bare_python))) == EXPECTED


def test_late_activation_is_marked_and_complete(bare_python: Path, target_folder: Path) -> None:
    path = os.pathsep.join([str(target_folder), os.environ.get("PYTHONPATH", "")])
    env = environment(PYTHONPATH=path, VERL_USE_EXTERNAL_PLUGINS="none")
    code = "import megatron.bridge.training.utils.train_utils\nimport verl_compat.auto\n" + PROBE
    assert answer(run("-c", code, env=env, python=str(bare_python))) == EXPECTED | {"outcome": "late"}


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_multiprocessing_children(method: str, tmp_path: Path) -> None:
    probe = "\n".join("    " + line for line in PROBE.splitlines())
    script = tmp_path / "children.py"
    script.write_text(
        f"import multiprocessing\ndef child():\n{probe}\nif __name__ == '__main__':\n"
        f"    process = multiprocessing.get_context({method!r}).Process(target=child)\n"
        "    process.start()\n    process.join(240)\n    raise SystemExit(process.exitcode)\n"
    )
    assert answer(run(str(script))) == EXPECTED


def test_child_forked_after_patching_keeps_the_patches(tmp_path: Path) -> None:
    code = (
        PROBE
        + "import os\npid = os.fork()\nif pid == 0:\n"
        + "\n".join("    " + line for line in PROBE.splitlines())
        + "\n    sys.stdout.flush()\n    os._exit(0)\nassert os.waitpid(pid, 0)[1] == 0\n"
    )
    done = run("-c", code, env=environment(VERL_COMPAT_REPORT_DIR=str(tmp_path)))
    assert answer(done) == EXPECTED
    assert len(list(tmp_path.glob("*.json"))) == 2  # each process leaves its own report


def test_ray_worker(tmp_path: Path) -> None:
    probe = "\n".join("    " + line for line in PROBE.splitlines()).replace("print(json.dumps(", "return ((")
    script = tmp_path / "driver.py"
    script.write_text(
        f"import json, ray\n@ray.remote\ndef worker():\n{probe}\n"
        "ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)\n"
        "print()\nprint(json.dumps(ray.get(worker.remote(), timeout=240)))\nray.shutdown()\n"
    )
    assert answer(run(str(script))) == EXPECTED


def test_vllm_entry_point_is_callable_twice() -> None:
    code = (
        "import sys\nfrom importlib.metadata import entry_points\n"
        "(entry,) = [e for e in entry_points(group='vllm.general_plugins') if e.name == 'verl_compat']\n"
        "entry.load()(); entry.load()()\n"
        "import verl_compat; print('{}', verl_compat.status().active)"
    )
    assert run("-c", code).stdout.split() == ["{}", "True"]


def test_reports_name_a_child_that_did_not_activate(tmp_path: Path) -> None:
    """One report per process; a Python child that was started with ``-S`` is named."""
    code = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(60)'])\n"
        "time.sleep(1)\nfrom verl_compat.report import write_report\nwrite_report()\n"
        "print('{}', child.pid)\nchild.kill()\n"
    )
    pid = run("-c", code, env=environment(VERL_COMPAT_REPORT_DIR=str(tmp_path))).stdout.split()[1]
    shown = run("-m", "verl_compat", "status", "--json", "--reports", str(tmp_path))
    assert f":{pid}" in shown.stdout
