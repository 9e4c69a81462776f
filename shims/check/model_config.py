"""A provider is compared with the checkpoint's configuration as soon as Bridge has made it from that."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from verl_compat import integrity
from verl_compat.shims.check.hf_config import language_part, rope, value
from verl_compat.shims.check.model_fields import FIELDS, UNSAID, stated_otherwise

CHECK = "check_model_config"
TIES = "share_embeddings_and_output_weights"
# scaling types that Megatron has fields for, or that are handled outside of the configuration
_KNOWN_SCALING = {"default", "yarn", "llama3", "linear", "mrope", "proportional"}


@dataclass(frozen=True)
class Difference:
    """One field in which provider and checkpoint differ."""

    field: str
    wanted: Any
    built: Any

    def __str__(self) -> str:
        wanted = "/".join(sorted(self.wanted)) if isinstance(self.wanted, set) else self.wanted
        return f"{self.field} {self.built} (checkpoint: {wanted})"


@dataclass
class Made:
    """A provider as Bridge made it: what it said then tells an override from a fault."""

    provider: Any  # weak reference
    origin: str
    fields: dict[str, Any]
    differences: tuple[Difference, ...]


_made: list[Made] = []


def check_provider(original: Callable[..., Any], bridge: Any, *args: Any, **kwargs: Any) -> Any:
    """Around ``AutoBridge.to_megatron_provider``: whatever differs here, Bridge alone has made different."""
    provider = original(bridge, *args, **kwargs)
    config = getattr(bridge.hf_pretrained, "config", bridge.hf_pretrained)
    integrity.look(CHECK, tell_differences, provider, config, _origin(bridge))
    return provider


def _origin(bridge: Any) -> str:
    for name in ("model_name_or_path", "name_or_path", "_name_or_path"):
        found = getattr(bridge.hf_pretrained, name, None)
        if found:
            return str(found)
    return type(getattr(bridge.hf_pretrained, "config", bridge.hf_pretrained)).__name__


def tell_differences(provider: Any, config: Any, origin: str) -> None:
    """Compare, note, and warn once (an error in strict mode)."""
    compared, differences = compare(provider, config)
    _made[:] = [made for made in _made if made.provider() is not None]
    made = Made(weakref.ref(provider), origin, read_all(provider), tuple(differences))
    _made.append(made)
    _note(made, len(compared), {})
    if differences:
        integrity.say_summary("configuration", f"{len(differences)} of {len(compared)} fields differ")
        integrity.tell(
            CHECK,
            f"Bridge made a model configuration from {origin} that is not the checkpoint's: "
            f"{', '.join(map(str, differences))}. The model would compute something else than the one that was "
            "trained; set these fields as overrides, or use a Bridge that reads this configuration",
        )
    else:
        integrity.say_summary("configuration", f"{len(compared)} fields equal")


def compare(provider: Any, config: Any) -> tuple[list[str], list[Difference]]:
    """All fields that both sides state, and those in which they differ."""
    part = language_part(config)
    compared: list[str] = []
    found: list[Difference] = []
    for field in FIELDS:
        wanted, built = field.wanted(part), field.built(provider)
        if wanted is None or isinstance(wanted, (list, tuple, dict)) or built is UNSAID:
            continue
        if field.name == TIES and _unsure_of_ties(config, part):
            continue
        if stated_otherwise(value(part, "model_type"), field.name):
            continue
        if built is None and not hasattr(provider, field.name):
            continue
        try:
            same = built is not None and field.same(wanted, built)
        except (TypeError, ValueError):  # a provider that keeps something else under this name
            continue
        compared.append(field.name)
        if not same:
            found.append(Difference(field.name, wanted, "unset" if built is None else built))
    kind = rope(part)["type"]
    if kind not in _KNOWN_SCALING:
        found.append(Difference("rope_type", kind, "not supported by Megatron"))
    return compared, found


def _unsure_of_ties(config: Any, part: Any) -> bool:
    """Composite configurations state ties twice; which one counts is the model's own business."""
    return part is not config and value(config, "tie_word_embeddings") != value(part, "tie_word_embeddings")


def read_all(provider: Any) -> dict[str, Any]:
    """What the provider says about each field now."""
    return {field.name: field.built(provider) for field in FIELDS}


def note_overrides(original: Callable[..., Any], provider: Any, *args: Any, **kwargs: Any) -> Any:
    """Around ``ModelProviderMixin.provide_distributed_model``: what verl or the user set since goes into ``status``."""
    integrity.look(CHECK, _overrides, provider)
    return original(provider, *args, **kwargs)


def _overrides(provider: Any) -> None:
    made = next((made for made in reversed(_made) if made.provider() is provider), None)
    if made is None:
        return
    now = read_all(provider)
    changed = {name: [str(made.fields[name]), str(now[name])] for name in now if now[name] != made.fields[name]}
    _note(made, len([value for value in made.fields.values() if value is not None]), changed)


def _note(made: Made, compared: int, overrides: dict[str, list[str]]) -> None:
    integrity.note(
        CHECK,
        origin=made.origin,
        compared=compared,
        differ=[str(difference) for difference in made.differences],
        overrides=overrides,
    )
