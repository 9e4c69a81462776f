"""Which Megatron-Bridge goes with which megatron-core, as data, and the messages made from it."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata
from types import ModuleType

from packaging.requirements import Requirement
from packaging.version import InvalidVersion, Version

from verl_compat.shims.notices import diagnosis

MISSING: Mapping[str, Mapping[str, int]] = {
    "0.3": {"0.14": 32, "0.15": 13, "0.16": 0, "0.17": 3, "0.18": 3, "0.19": 3},
    "0.4": {"0.14": 59, "0.15": 27, "0.16": 12, "0.17": 0, "0.18": 0, "0.19": 0},
    "0.5": {"0.14": 150, "0.15": 103, "0.16": 85, "0.17": 56, "0.18": 0, "0.19": 0},
    "0.6": {"0.14": 189, "0.15": 135, "0.16": 113, "0.17": 80, "0.18": 3, "0.19": 0},
}
"""Bridge release line -> core release line -> names that Bridge imports unguarded and core lacks
(static audit of the newest wheels of both lines)."""

PARTIAL: Mapping[tuple[str, str], str] = {
    ("0.3", "0.17"): "Bridge's training and inference modules (core's megatron_tokenizer is gone)",
    ("0.3", "0.18"): "Bridge's training and inference modules (core's megatron_tokenizer is gone)",
    ("0.3", "0.19"): "Bridge's training and inference modules (core's megatron_tokenizer is gone)",
}
"""Pairs of which `import megatron.bridge` works: what of Bridge cannot be imported."""

NATURAL: Mapping[str, tuple[str, str]] = {
    "0.3": ("0.3.1", "0.16.1"),
    "0.4": ("0.4.2", "0.17.1"),
    "0.5": ("0.5.1", "0.18.2"),
    "0.6": ("0.6.2", "0.19.2"),
}
"""Bridge release line -> the pair that its developers released together (newest patch releases)."""

GUIDE = "https://github.com/NVIDIA-NeMo/Megatron-Bridge/issues/2075"


def line(version: str | None) -> str | None:
    """``0.5`` for ``0.5.1``, ``0.5.0rc2`` or ``0.5.0+sha``; None for what is no version."""
    try:
        release = Version(version or "").release
    except InvalidVersion:
        return None
    return ".".join(map(str, (*release, 0)[:2]))


def missing(bridge: str | None, core: str | None) -> int | None:
    """How many names of core a Bridge lacks; None where the table does not know."""
    return MISSING.get(line(bridge) or "", {}).get(line(core) or "")


def remedy(bridge: str | None, core: str | None) -> str:
    """The nearest working pair, with its pip line: keep Bridge and change core, or the other way."""
    keep_bridge = NATURAL.get(line(bridge) or "")
    keep_core = [pair for pair in NATURAL.values() if line(pair[1]) == line(core)]
    choices = []
    if keep_bridge:
        choices.append(f"`pip install --no-deps megatron-core=={keep_bridge[1]}`")
    if keep_core:
        choices.append(f"`pip install --no-deps megatron-bridge=={keep_core[0][0]}`")
    if not choices:
        pairs = ", ".join(f"{b} with core {c}" for b, c in NATURAL.values())
        return f"Pairs that go together: Bridge {pairs}. See {GUIDE}."
    pair = keep_bridge or keep_core[0]
    return (
        f"The nearest working pair is megatron-bridge {pair[0]} with megatron-core {pair[1]}: {' or '.join(choices)}."
    )


def bridge_import_failed(error: BaseException, versions: Mapping[str, str]) -> str | None:
    """The import of a Bridge module raised: say so if it is the installed core that does not fit."""
    if not _is_about_core(error) or getattr(error, "_verl_compat_told", False):
        return None
    error._verl_compat_told = True  # type: ignore[attr-defined]  # the importing packages see the same error
    bridge, core = versions.get("megatron-bridge"), versions.get("megatron-core")
    both = _both(versions)
    if core is None:
        return diagnosis("megatron-bridge needs megatron-core, which is not installed", both, "", remedy(bridge, core))
    lacks = missing(bridge, core)
    if lacks == 0:
        return None
    number = f"{lacks} names" if lacks else "names"
    found = (
        f"this megatron-bridge imports {number} that this megatron-core does not have, the first being {_what(error)}"
    )
    return diagnosis(found, both, "No part of Bridge that needs them can work.", remedy(bridge, core))


def _is_about_core(error: BaseException) -> bool:
    if not isinstance(error, (ImportError, AttributeError)):
        return False
    name = getattr(error, "name", None) or ""
    return any(part in f"{name} {error}" for part in ("megatron.core", "megatron.training", "megatron/core"))


def _what(error: BaseException) -> str:
    module, name = getattr(error, "name", None), getattr(error, "name_from", None)
    return f"{name} of {module}" if name and module else str(module or error)


def _both(versions: Mapping[str, str]) -> dict[str, str]:
    return {dist: versions[dist] for dist in ("megatron-bridge", "megatron-core") if dist in versions}


def status_note(versions: Mapping[str, str]) -> str | None:
    """One line for ``verl-compat status``: do the installed Bridge and core go together?"""
    bridge, core = versions.get("megatron-bridge"), versions.get("megatron-core")
    if bridge is None or core is None:
        return None
    lacks = missing(bridge, core)
    pair = f"megatron-bridge {bridge} with megatron-core {core}"
    if lacks is None:
        return f"{pair}: not in the table of pairs. {remedy(bridge, core)}"
    if lacks == 0:
        return f"{pair}: a pair that goes together"
    partial = PARTIAL.get((line(bridge) or "", line(core) or ""))
    if partial:
        return f"{pair}: {partial} cannot be imported, {lacks} names missing. {remedy(bridge, core)}"
    return f"{pair}: does NOT go together, {lacks} names missing. {remedy(bridge, core)}"


def verl_bridge_missing(error: BaseException, versions: Mapping[str, str]) -> str | None:
    """verl's ``verl.models.mcore.bridge`` could not be imported: Bridge is missing (verl 0.9 takes it by default)."""
    if "megatron-bridge" in versions or "megatron.bridge" not in f"{getattr(error, 'name', '')} {error}":
        return None
    core = versions.get("megatron-core")
    fits = next((bridge for bridge, its_core in NATURAL.values() if line(its_core) == line(core)), None)
    install = f"megatron-bridge=={fits}" if fits else "megatron-bridge"
    listed = {dist: versions[dist] for dist in ("verl", "megatron-core", "mbridge") if dist in versions}
    return diagnosis(
        "megatron-bridge is not installed",
        listed,
        "verl builds the model with it unless told otherwise (the default from verl 0.9 on).",
        f"`pip install --no-deps {install}` fits this megatron-core, or set "
        "actor_rollout_ref.actor.megatron.vanilla_mbridge=True (critic and ref alike) to go on with mbridge.",
    )


def mbridge_import_failed(error: BaseException, versions: Mapping[str, str]) -> str | None:
    """mbridge could not be imported because the installed core lacks a name."""
    if not _is_about_core(error):
        return None
    listed = {dist: versions[dist] for dist in ("mbridge", "megatron-core") if dist in versions}
    return diagnosis(
        f"this mbridge imports {_what(error)}, which this megatron-core does not have",
        listed,
        "mbridge 0.15.1 needs megatron-core 0.14 or newer (0.12 lacks get_tensor_model_parallel_group_if_none).",
        "`pip install --no-deps 'megatron-core>=0.14,<0.17'`.",
    )


def transformers_range(module: ModuleType, versions: Mapping[str, str]) -> str | None:
    """Whether the installed transformers lies in the range that the installed Bridge declares."""
    here = versions.get("transformers")
    declared = declared_range("megatron-bridge", "transformers")
    if here is None or declared is None:
        return None
    try:
        inside = Requirement(f"transformers{declared}").specifier.contains(Version(here), prereleases=True)
    except InvalidVersion:
        return None
    if inside:
        return None
    return diagnosis(
        f"this megatron-bridge declares transformers{declared}",
        {dist: versions[dist] for dist in ("megatron-bridge", "transformers") if dist in versions},
        "Outside the range its model bridges may fail to import, or read configurations wrongly; "
        "pip does not object after --no-deps.",
        f"`pip install 'transformers{declared}'`, or another Bridge (verl 0.9.1 pins transformers 5.9.0, "
        "which megatron-bridge 0.5.0 and 0.5.1 exclude).",
    )


def declared_range(dist: str, needs: str) -> str | None:
    """The version range of a requirement without extra, from a distribution's metadata; None without one."""
    try:
        lines = metadata.requires(dist) or []
    except metadata.PackageNotFoundError:
        return None
    for requirement in map(Requirement, lines):
        if requirement.name == needs and requirement.marker is None and requirement.specifier:
            return str(requirement.specifier)
    return None


def circular_import(error: BaseException, versions: Mapping[str, str]) -> str | None:
    """Bridge was imported while a package that it imports was half-way through importing Bridge."""
    if not isinstance(error, (ImportError, AttributeError)) or "partially initialized module" not in str(error):
        return None
    listed = {dist: versions[dist] for dist in ("megatron-bridge", "transformers") if dist in versions}
    return diagnosis(
        f"circular import of Megatron-Bridge ({error})",
        listed,
        "transformers >= 5.4 and ModelOpt's Megatron plugins import Megatron-Bridge while it imports them.",
        "Put `import megatron.bridge` before the first import of modelopt or of transformers' model classes "
        "(for verl: VERL_USE_EXTERNAL_MODULES=megatron.bridge).",
    )
