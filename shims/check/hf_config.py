"""Reading a Hugging Face configuration as it is, whatever the transformers release spells it like."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_NESTED = ("text_config", "llm_config", "language_config", "thinker_config")


def value(config: Any, name: str) -> Any:
    """One field of a configuration object or of a mapping; None where it has none."""
    if isinstance(config, Mapping):
        return config.get(name)
    try:
        return getattr(config, name, None)
    except Exception:  # properties of remote configuration code may raise what they like
        return None


def first(config: Any, *names: str) -> Any:
    """The first of several spellings that has a value."""
    for name in names:
        found = value(config, name)
        if found is not None:
            return found
    return None


def language_part(config: Any) -> Any:
    """The configuration of the language model: the nested one of a vision-language or audio model, else itself."""
    for name in _NESTED:
        nested = value(config, name)
        if nested is not None and not isinstance(nested, str):
            return language_part(nested)
    return config


def rope(config: Any) -> dict[str, Any]:
    """Rotary settings in one spelling: ``theta``, ``type`` and the scaling type's own fields.

    transformers 4 has ``rope_theta`` and ``rope_scaling``; transformers 5 has ``rope_parameters``, one mapping or
    one per layer type (then full attention's counts). Hub files may spell either.
    """
    scaling: dict[str, Any] = {}
    for name in ("rope_scaling", "rope_parameters"):
        found = value(config, name)
        if isinstance(found, Mapping):
            scaling.update(_full_attention(found))
    theta = first(config, "rope_theta", "rotary_emb_base")
    if theta is None:
        theta = scaling.get("rope_theta")
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    original = scaling.get("original_max_position_embeddings")
    if original is None and kind != "default":
        original = value(config, "original_max_position_embeddings")
    return {**scaling, "theta": theta, "type": str(kind), "original": original}


def _full_attention(found: Mapping[str, Any]) -> dict[str, Any]:
    per_layer = found.get("full_attention")
    if isinstance(per_layer, Mapping):
        return dict(per_layer)
    if any(isinstance(entry, Mapping) for entry in found.values()):
        return {}  # one mapping per layer type, none of them full attention
    return dict(found)


def layers(config: Any) -> int | None:
    """Number of decoder layers."""
    found = first(config, "num_hidden_layers", "num_layers", "n_layer")
    return found if isinstance(found, int) else None


def sliding_window(config: Any) -> int | None:
    """The window that is in force; None where the configuration has one and does not use it."""
    window = value(config, "sliding_window")
    kinds = value(config, "layer_types")
    if value(config, "use_sliding_window") is False:
        return None
    if isinstance(kinds, (list, tuple)) and not any("sliding" in str(kind) for kind in kinds):
        return None
    return window if isinstance(window, int) else None
