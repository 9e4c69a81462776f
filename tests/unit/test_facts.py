"""What adapters note in a process reaches reports and ``explain``."""

import json
import sys
import types

import pytest

from verl_compat import cli
from verl_compat.adapters.public import FACTS
from verl_compat.facts import facts
from verl_compat.report import current_status, write_report
from verl_compat.shims import provider_settings


class Provider:
    attention_backend = "flash"
    moe_router_load_balancing_type = "none"


@pytest.fixture(autouse=True)
def nothing_noted_before():
    provider_settings._RECORDS.clear()
    yield
    provider_settings._RECORDS.clear()


def built():
    return provider_settings.provide_and_record(lambda self, wrap: ("model", wrap), Provider(), wrap=True)


def test_nothing_noted_is_left_out():
    assert facts() == {}


def test_building_a_model_notes_its_settings_once_and_returns_it():
    assert built() == built() == ("model", True)
    (noted,) = facts()["bridge_provider_settings"]
    assert noted["provider"] == "Provider"
    assert {"name": "attention_backend", "value": "flash", "source": "provider"} in noted["settings"]
    assert current_status().to_dict()["facts"] == facts()


def test_a_provider_that_cannot_be_read_does_not_stop_the_model():
    class Broken:
        def __getattr__(self, name):
            raise RuntimeError(name)

    assert provider_settings.provide_and_record(lambda self: "model", Broken()) == "model"
    assert facts() == {}


def test_trouble_is_one_warning(monkeypatch, caplog):
    module = types.ModuleType("noting")
    module.fail = lambda: 1 / 0
    monkeypatch.setitem(sys.modules, "noting", module)
    monkeypatch.setitem(FACTS, "some_adapter", "noting:fail")
    monkeypatch.setitem(FACTS, "other_adapter", "never.imported:fail")
    assert facts() == {}
    assert "some_adapter: what it noted cannot be told: ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("as_json", [False, True])
def test_explain_shows_it(tmp_path, monkeypatch, capsys, as_json):
    monkeypatch.setenv("VERL_COMPAT_REPORT_DIR", str(tmp_path))
    built()
    write_report()
    flags = ["--json"] if as_json else []
    assert cli.main(["explain", "bridge_provider_settings", "--reports", str(tmp_path), *flags]) == 0
    out = capsys.readouterr().out
    assert "moe_router_load_balancing_type" in out
    if as_json:
        (noted,) = json.loads(out)["noted"].values()
        assert noted == json.loads(json.dumps(facts()["bridge_provider_settings"]))


def test_explain_without_reports_there(tmp_path, caplog):
    assert cli.main(["explain", "bridge_provider_settings", "--reports", str(tmp_path / "absent")]) == 2
    assert "is no directory" in caplog.text
