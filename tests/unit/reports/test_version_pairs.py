"""Which versions go together: the table, the messages, and where they are said.

Stand-ins: packages of the layout of Bridge 0.5.1, core 0.16.1 and so on, with the one import that fails there.
"""

from __future__ import annotations

import json
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from verl_compat import cli
from verl_compat.registry import upstreams
from verl_compat.shims import version_pairs as pairs

RELEASES = [(b, c) for b in upstreams()["megatron-bridge"].known for c in upstreams()["megatron-core"].known]


def pip_requirements(text: str) -> dict[str, str]:
    """Distribution -> version of the pip lines in a message."""
    found = [part.split("`")[0].split()[-1] for part in text.split("pip install")[1:]]
    return {Requirement(r).name: str(Requirement(r).specifier).removeprefix("==") for r in found}


@pytest.mark.parametrize(("bridge", "core"), RELEASES)
def test_every_known_pair_is_in_the_table(bridge, core):
    assert pairs.missing(bridge, core) is not None


@pytest.mark.parametrize(("bridge", "core"), RELEASES)
def test_advice_leads_to_a_pair_that_works(bridge, core):
    """Following either pip line gives a pair without missing names."""
    for dist, version in pip_requirements(pairs.remedy(bridge, core)).items():
        after = (version, core) if dist == "megatron-bridge" else (bridge, version)
        assert pairs.missing(*after) == 0, (dist, version)


@pytest.mark.parametrize("text", ["0.5.1", "0.5.0rc2", "0.5.1+gabc", "0.5", "0.5.2.dev3"])
def test_line_of_a_version(text):
    assert pairs.line(text) == "0.5"


@pytest.mark.parametrize("text", [None, "", "main", "unknown"])
def test_no_version_is_no_line(text):
    assert pairs.line(text) is None
    assert pairs.missing(text, "0.18.2") is None


def test_unknown_bridge_lists_the_pairs():
    for bridge, core in pairs.NATURAL.values():
        assert f"{bridge} with core {core}" in pairs.remedy("0.9.0", "0.25.0")


@pytest.fixture
def old_core(stubs):
    """Bridge 0.5.1's utils/common_utils.py imports safe_get_world_size, which core 0.16.1 lacks."""
    stubs.dist("megatron-core", "0.16.1", _rank_utils="def safe_get_rank(): ...\n")
    source = "from megatron.core._rank_utils import safe_get_rank, safe_get_world_size\n"
    stubs.dist("megatron-bridge", "0.5.1", utils__common_utils=source)
    stubs.module("megatron.bridge", "import megatron.bridge.utils.common_utils\n")
    return stubs


def test_import_failure_names_both_versions_and_the_way_out(old_core, said):
    with pytest.raises(ImportError, match="safe_get_world_size"):
        old_core.load("megatron.bridge")
    (text,) = said()
    assert "megatron-bridge 0.5.1" in text
    assert "megatron-core 0.16.1" in text
    assert pip_requirements(text) == {"megatron-core": "0.18.2", "megatron-bridge": "0.3.1"}
    assert "VERL_COMPAT_DISABLE=bridge_core_pair" in text


def test_switched_off_it_says_nothing(old_core, said, monkeypatch):
    from verl_compat.state import STATE

    monkeypatch.setenv("VERL_COMPAT_DISABLE", "bridge_core_pair")
    STATE.forget_switches()
    with pytest.raises(ImportError):
        old_core.load("megatron.bridge")
    assert said() == []


@pytest.mark.parametrize("error", [ImportError("No module named 'einops'", name="einops"), ValueError("megatron.core")])
def test_other_failures_are_not_blamed_on_core(error):
    assert pairs.bridge_import_failed(error, {"megatron-bridge": "0.5.1", "megatron-core": "0.16.1"}) is None


def test_a_pair_that_goes_together_is_not_blamed():
    error = ImportError("cannot import name 'x' from 'megatron.core.y'", name="megatron.core.y")
    assert pairs.bridge_import_failed(error, {"megatron-bridge": "0.5.1", "megatron-core": "0.18.2"}) is None


def test_core_missing_altogether():
    error = ModuleNotFoundError("No module named 'megatron.core'", name="megatron.core")
    text = pairs.bridge_import_failed(error, {"megatron-bridge": "0.4.2"})
    assert text is not None
    assert "megatron-core==0.17.1" in text


def test_megatron_training_models_gpt(stubs, said):
    """Megatron-Bridge#5148: Bridge 0.6 on core 0.18."""
    stubs.dist("megatron-core", "0.18.2")
    stubs.module("megatron.training", "")
    stubs.dist("megatron-bridge", "0.6.2")
    stubs.module("megatron.bridge", "from megatron.training.models.gpt import GPTModelBuilder\n")
    with pytest.raises(ModuleNotFoundError):
        stubs.load("megatron.bridge")
    assert pip_requirements(said()[0]) == {"megatron-core": "0.19.2", "megatron-bridge": "0.5.1"}


def test_told_once_where_two_targets_fail(stubs, said):
    """Bridge 0.4.2's training/config.py needs megatron.training, which core 0.16.1's wheel lacks."""
    stubs.dist("megatron-core", "0.16.1")
    stubs.dist("megatron-bridge", "0.4.2", training__config="from megatron.training.config import TrainingConfig\n")
    stubs.module("megatron.bridge", "import megatron.bridge.training.config\n")
    with pytest.raises(ModuleNotFoundError):
        stubs.load("megatron.bridge")
    (text,) = said()
    assert pip_requirements(text) == {"megatron-core": "0.17.1", "megatron-bridge": "0.3.1"}


def test_told_where_only_the_training_configuration_fails(stubs, said):
    """`bridge_core_pair_training`: Bridge itself imports, verl asks for its training configuration later."""
    stubs.dist("megatron-core", "0.16.1")
    stubs.dist("megatron-bridge", "0.4.2", training__config="from megatron.training.config import TrainingConfig\n")
    stubs.load("megatron.bridge")
    with pytest.raises(ModuleNotFoundError):
        stubs.load("megatron.bridge.training.config")
    (text,) = said()
    assert pip_requirements(text) == {"megatron-core": "0.17.1", "megatron-bridge": "0.3.1"}


@pytest.mark.parametrize(
    ("bridge", "core", "verdict"),
    [
        ("0.5.1", "0.18.2", "goes together"),
        ("0.5.1", "0.16.1", "does NOT go together"),
        ("0.3.1", "0.18.2", "training and inference modules"),
        ("0.9.0", "0.18.2", "not in the table"),
    ],
)
def test_status_shows_the_verdict(stubs, capsys, bridge, core, verdict):
    stubs.dist("megatron-core", core)
    stubs.dist("megatron-bridge", bridge)
    assert cli.main(["status", "--json"]) == 0
    (note,) = json.loads(capsys.readouterr().out)["notes"]
    assert verdict in note
    cli.main(["status"])
    assert verdict.split()[0] in capsys.readouterr().out


def test_status_without_bridge_has_no_note(stubs, capsys):
    stubs.dist("megatron-core", "0.18.2")
    cli.main(["status", "--json"])
    assert json.loads(capsys.readouterr().out)["notes"] == []


def test_bridge_missing_for_verl(stubs, said):
    """verl#6931; verl 0.9.1's own words are an unpinned pip line."""
    stubs.dist("verl", "0.9.1", models__mcore__bridge="from megatron.bridge import AutoBridge\n")
    stubs.dist("megatron-core", "0.18.0")
    stubs.dist("mbridge", "0.15.1")
    with pytest.raises(ModuleNotFoundError):
        stubs.load("verl.models.mcore.bridge")
    (text,) = said()
    assert "megatron-bridge==0.5.1" in text
    assert "vanilla_mbridge=True" in text
    assert "verl 0.9.1" in text


def test_bridge_installed_but_broken_is_not_called_missing():
    error = ImportError("cannot import name 'AutoBridge' from 'megatron.bridge'", name="megatron.bridge")
    assert pairs.verl_bridge_missing(error, {"verl": "0.9.1", "megatron-bridge": "0.5.1"}) is None


def test_mbridge_on_core_0_12(stubs, said):
    """mbridge#50."""
    stubs.dist("megatron-core", "0.12.1", utils="")
    stubs.dist("mbridge", "0.15.1")
    stubs.module("mbridge", "from megatron.core.utils import get_tensor_model_parallel_group_if_none\n")
    with pytest.raises(ImportError):
        stubs.load("mbridge")
    (text,) = said()
    assert "mbridge 0.15.1" in text
    assert "megatron-core 0.12.1" in text


@pytest.fixture
def bridge_with_range(stubs):
    def make(declared: str, transformers: str) -> ModuleType:
        stubs.dist("transformers", transformers)
        stubs.dist("megatron-bridge", "0.5.1", models__conversion__auto_bridge="class AutoBridge: ...\n")
        info = stubs.site / "megatron_bridge-0.5.1.dist-info" / "METADATA"
        info.write_text(info.read_text() + f"Requires-Dist: transformers{declared}\n")
        return stubs.load("megatron.bridge.models.conversion.auto_bridge")

    return make


@pytest.mark.parametrize("inside", ["5.8.1", "5.8.5", "5.8.2.dev0"])
def test_transformers_inside_the_range_gives_no_alarm(bridge_with_range, said, inside):
    bridge_with_range("<5.9.0,>=5.8.1", inside)
    assert said() == []


@pytest.mark.parametrize("outside", ["5.3.0", "5.9.0", "4.57.6"])
def test_transformers_outside_the_range(bridge_with_range, said, outside):
    """agentcore-rl-toolkit#86, and verl 0.9.1's own pin."""
    bridge_with_range("<5.9.0,>=5.8.1", outside)
    (text,) = said()
    assert f"transformers {outside}" in text
    assert "<5.9.0,>=5.8.1" in text


def test_circular_import(stubs, said):
    """Megatron-Bridge#5192: two packages that import each other."""
    stubs.dist("megatron-bridge", "0.5.1")
    stubs.module("megatron.bridge.models", "import plugin_half\nclass MegatronMappingRegistry: ...\n")
    stubs.module("plugin_half", "from megatron.bridge.models import MegatronMappingRegistry\n")
    with pytest.raises(ImportError):
        stubs.load("megatron.bridge.models")
    (text,) = said()
    assert "import megatron.bridge" in text


def test_the_other_order_says_nothing(stubs, said):
    stubs.dist("megatron-bridge", "0.5.1")
    stubs.module("megatron.bridge.models", "import plugin_half\nclass MegatronMappingRegistry: ...\n")
    stubs.module("plugin_half", "from megatron.bridge.models import MegatronMappingRegistry\n")
    stubs.load("plugin_half")
    assert said() == []


def test_versions_are_comparable():
    """The natural pairs are released versions, in order."""
    bridges = [Version(bridge) for bridge, _ in pairs.NATURAL.values()]
    assert bridges == sorted(bridges)
