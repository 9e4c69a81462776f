"""What each model provider of this process was really set to, for reports.

Attention backend, MoE dispatcher and router load balancing are decided by the Hugging Face
config, by Bridge's defaults, by verl and by the user; a reward that stays flat can hang on one
of them (https://github.com/verl-project/verl/issues/5187).
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from verl_compat.shims.json_safe import to_json_safe

REPORTED = (
    "params_dtype",
    "attention_backend",
    "variable_seq_lengths",
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "virtual_pipeline_model_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
    "sequence_parallel",
    "moe_token_dispatcher_type",
    "moe_router_load_balancing_type",
    "moe_aux_loss_coeff",
    "moe_enable_routing_replay",
    "enable_routing_replay",
    "calculate_per_token_loss",
)


@dataclass(frozen=True)
class Setting:
    """One effective value.

    Attributes:
        value: JSON-safe.
        source: ``default``, ``provider_overrides``, ``override_transformer_config``, or
            ``provider`` where it was not set through :func:`.configure_provider`.
    """

    name: str
    value: Any
    source: str


@dataclass(frozen=True)
class ProviderSettings:
    """The settings of one provider, as its model was, or is about to be, built."""

    provider: str
    settings: tuple[Setting, ...]


_RECORDS: deque[ProviderSettings] = deque(maxlen=16)
# beside the provider, not on it: providers are compared, copied and written to checkpoints
_SOURCES: deque[tuple[weakref.ref[Any], dict[str, str]]] = deque(maxlen=16)


def record_settings(provider: Any, sources: Mapping[str, str] | None = None) -> ProviderSettings:
    """Remember the effective values of a provider, once for each different set of them."""
    if sources is not None:
        _SOURCES.append((weakref.ref(provider), dict(sources)))
    known: Mapping[str, str] = next((names for ref, names in reversed(_SOURCES) if ref() is provider), {})
    settings = tuple(
        Setting(name, to_json_safe(getattr(provider, name)), known.get(name, "provider"))
        for name in dict.fromkeys((*REPORTED, *known))
        if hasattr(provider, name)
    )
    done = ProviderSettings(type(provider).__name__, settings)
    if done not in _RECORDS:
        _RECORDS.append(done)
    return done


def recorded_settings() -> tuple[ProviderSettings, ...]:
    """The last sixteen, oldest first."""
    return tuple(_RECORDS)


def recorded_settings_json() -> list[dict[str, Any]]:
    """The same, ready for a report."""
    return [asdict(record) for record in _RECORDS]


def provide_and_record(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Wrap ``ModelProviderMixin.provide_distributed_model``: note what the model is built with."""
    try:
        record_settings(self)
    except Exception:  # a report must not stop a training
        pass
    return original(self, *args, **kwargs)
