"""The switches, in real processes with the real verl."""

from __future__ import annotations

import pytest
from packaging.version import Version

from .conftest import PROBE, VERL, answer, environment, run

LOADS_AT_IMPORT = Version("0.8") <= VERL < Version("0.9")


@pytest.mark.skipif(not LOADS_AT_IMPORT, reason="only verl 0.8 needs the helpers to be imported at all")
def test_off_gives_verls_own_error_unchanged() -> None:
    done = run("-c", "import verl.models.mcore.bridge", env=environment(VERL_COMPAT="off"), check=False)
    assert done.returncode == 1
    assert "ImportError: cannot import name 'LinearForLastLayer'" in done.stderr
    assert "verl_compat" not in done.stderr
    assert "verl-compat" not in done.stderr


@pytest.mark.skipif(VERL < Version("0.8"), reason="verl 0.7 makes its PEFT objects by itself")
def test_off_leaves_the_peft_import_error() -> None:
    code = "from verl.workers.config.megatron_peft import get_peft_cls\nimport types\n"
    code += "get_peft_cls(types.SimpleNamespace(lora={'rank': 8}), object(), object())"
    done = run("-c", code, env=environment(VERL_COMPAT="off"), check=False)
    assert "ImportError: cannot import name 'create_peft'" in done.stderr
    assert run("-c", code).returncode == 0


@pytest.mark.parametrize(
    "switch",
    [
        {"VERL_COMPAT_DISABLE": "bridge_lt_0_5_value_head"},
        {"VERL_COMPAT_DISABLE": "bridge"},
        {"VERL_COMPAT_ONLY": "verl"},
    ],
)
def test_one_adapter_or_family_off(switch: dict[str, str]) -> None:
    code = (
        "import megatron.bridge.training.utils.train_utils as t\n"
        "from verl_compat import status\nimport json\n"
        "print(json.dumps({'there': hasattr(t, 'make_value_model'),"
        "'o': status().outcome('bridge_lt_0_5_value_head')}))"
    )
    assert answer(run("-c", code, env=environment(**switch))) == {"there": False, "o": "disabled"}


def test_unknown_word_warns_once_and_the_rest_goes_on() -> None:
    done = run("-c", PROBE, env=environment(VERL_COMPAT_DISABLE="bridge_lt_0_5_value_heat"))
    assert answer(done)["outcome"] == "applied"
    assert done.stderr.count("VERL_COMPAT_DISABLE names 'bridge_lt_0_5_value_heat'") == 1
    assert "Did you mean bridge_lt_0_5_value_head" in done.stderr


def test_strict_passes_where_everything_applies() -> None:
    assert answer(run("-c", PROBE, env=environment(VERL_COMPAT="strict")))["outcome"] == "applied"


def test_status_imports_no_upstream() -> None:
    code = (
        "import sys\nfrom verl_compat.cli import main\nmain(['status', '--json'])\n"
        "loaded = {m.partition('.')[0] for m in sys.modules} & {'torch', 'megatron', 'verl', 'vllm', 'ray', 'numpy'}\n"
        "assert not loaded, loaded"
    )
    status = run("-c", code).stdout
    assert '"id": "bridge_lt_0_5_value_head"' in status
    assert "would-apply" in status


def test_revert_restores_every_patched_module() -> None:
    """All targets that can be imported here: ``__dict__`` of module and classes before and after."""
    code = """
import importlib, sys
import verl_compat
from verl_compat import adapters
verl_compat.revert()
modules = []
for target in adapters.TARGETS:
    try:
        modules.append(importlib.import_module(target))
    except Exception:
        pass  # an upstream that is not here; verl raises ValueError without vLLM
def snapshot():
    found = {}
    for module in modules:
        found[module.__name__] = list(vars(module).items())
        for name, value in list(vars(module).items()):
            if isinstance(value, type) and value.__module__ == module.__name__:
                found[module.__name__, name] = list(vars(value).items())
    return found
before = snapshot()
verl_compat.activate()
in_force = [a.id for a in verl_compat.status().adapters if a.outcome in ("late", "untested")]
assert snapshot() != before
verl_compat.revert()
after = snapshot()
for key in before:
    old, new = before[key], after[key]
    assert len(old) == len(new) and all(a[0] == b[0] and a[1] is b[1] for a, b in zip(old, new)), key
print(len(modules), in_force)
"""
    done = run("-c", code)
    assert "bridge_lt_0_5_value_head" in done.stdout


def test_no_door_undoes_a_revert() -> None:
    code = "import verl_compat; verl_compat.revert(); import verl, verl_compat.auto; verl_compat.auto.door()\n"
    assert run("-c", code + "print('{}', verl_compat.status().active)").stdout.split() == ["{}", "False"]
