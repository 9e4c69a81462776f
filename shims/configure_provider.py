"""Provider set-up with verl's defaults stated in one place, on every Bridge.

The first draft of https://github.com/verl-project/verl/pull/6335 called
``provider.configure(override_transformer_config, provider_overrides, ...)``.  No Bridge release has
that method; :func:`configure_provider` has its call shape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from verl_compat.shims.provider_overrides import apply_overrides_and_finalize, check_override_names
from verl_compat.shims.provider_settings import record_settings

# megatron-core >= 0.16 has the first as a field; verl <= 0.8 knows the second only
REPLAY_NAMES = ("moe_enable_routing_replay", "enable_routing_replay")
OFF_WHERE_ABSENT = ("dynamic_context_parallel", "max_seqlen_per_dp_cp_rank")
"""Left out where the provider lacks them and they are switched off: nothing to set."""


def provider_defaults() -> dict[str, Any]:
    """What verl 0.7.0 to 0.9.1 set on a Bridge provider before the user's overrides.

    Flash attention, variable sequence lengths, the all-to-all MoE dispatcher, and no router load
    balancing loss (Bridge's own default is an auxiliary loss for most MoE models).
    """
    from megatron.core.transformer.enums import AttnBackend

    return {
        "attention_backend": AttnBackend.flash,
        "variable_seq_lengths": True,
        "moe_token_dispatcher_type": "alltoall",
        "moe_router_load_balancing_type": "none",
    }


def configure_provider(
    provider: Any,
    override_transformer_config: Mapping[str, Any] | None = None,
    provider_overrides: Mapping[str, Any] | None = None,
    *,
    dtype: Any = None,
    pre_finalize: Callable[[Any], Any] | None = None,
) -> Any:
    """Apply defaults, then ``provider_overrides``, then ``override_transformer_config``; finalize once.

    Args:
        provider: a Megatron-Bridge model provider.
        override_transformer_config: the user's overrides; they win over everything else.
            ``attention_backend`` may be a name such as ``"flash"``.
        provider_overrides: what the trainer sets: parallel sizes and the like.
        dtype: parameter dtype; sets ``params_dtype``, ``fp16`` and ``bf16``.  None leaves them alone.
        pre_finalize: called with the provider after all values are set and before it is finalized.

    Returns:
        The provider.  :func:`.provider_settings.recorded_settings` says what it will be built with.

    Raises:
        AttributeError: an override names no attribute of the provider; close matches are named.
        RuntimeError: dynamic context parallelism was asked for and this megatron-core lacks it.
        ValueError: no attention backend of that name.
    """
    trainers, users = dict(provider_overrides or {}), dict(override_transformer_config or {})
    refuse_dynamic_cp({**trainers, **users}, supported=hasattr(provider, "dynamic_context_parallel"))
    values, sources = _merge(provider, trainers, users)
    check_override_names(provider, values)
    for layer in (trainers, users):
        for name in filter(layer.__contains__, REPLAY_NAMES):
            enable_routing_replay(provider, bool(layer[name]))
    with _before_finalize(provider, pre_finalize):
        # Bridge >= 0.5 has its own, which lays out DeepSeek-V4 pipelines too.
        own = getattr(provider, "apply_overrides_and_finalize", None)
        if own is None:
            apply_overrides_and_finalize(provider, dtype=dtype, overrides=values)
        else:
            own(dtype=dtype, overrides=values)
    record_settings(provider, sources)
    return provider


def _merge(
    provider: Any, trainers: Mapping[str, Any], users: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Values to set and who decided each; later layers win."""
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    layers = {
        "default": provider_defaults(),
        "provider_overrides": trainers,
        "override_transformer_config": users,
    }
    for source, layer in layers.items():
        for asked, value in layer.items():
            name = _replay_field(provider, asked) if asked in REPLAY_NAMES else asked
            if name is None or (name in OFF_WHERE_ABSENT and not value and not hasattr(provider, name)):
                continue
            values[name], sources[name] = value, source
    values["attention_backend"] = attention_backend(values["attention_backend"])
    return values, sources


def _replay_field(provider: Any, asked: str) -> str | None:
    """The field that this provider has for routing replay; None where it has neither."""
    return next((name for name in (asked, *REPLAY_NAMES) if hasattr(type(provider), name)), None)


def enable_routing_replay(config: Any, value: bool = True) -> None:
    """Switch routing replay on for whichever router reads it.

    megatron-core >= 0.16 has the field ``moe_enable_routing_replay``.  The router that verl 0.7
    and 0.8 put in its place reads ``enable_routing_replay``, which is a field of no release.
    """
    if hasattr(config, "moe_enable_routing_replay"):
        config.moe_enable_routing_replay = value
    config.enable_routing_replay = value


def attention_backend(value: Any) -> Any:
    """``AttnBackend`` from its name (``"flash"``, ``"AttnBackend.flash"``); other values as they are.

    Raises:
        ValueError: no backend of that name.
    """
    if not isinstance(value, str):
        return value
    from megatron.core.transformer.enums import AttnBackend

    name = value.removeprefix("AttnBackend.")
    if name not in AttnBackend.__members__:
        raise ValueError(
            f"attention_backend {value!r} is unknown: expected one of {', '.join(AttnBackend.__members__)}"
        )
    return AttnBackend[name]


def refuse_dynamic_cp(values: Mapping[str, Any], supported: bool) -> None:
    """One clear error where dynamic context parallelism is asked for and megatron-core lacks it.

    verl sets ``dynamic_context_parallel`` to False *and* ``max_seqlen_per_dp_cp_rank`` when it is on.

    Raises:
        RuntimeError: before anything is built.
    """
    asked = "dynamic_context_parallel" in values and (
        values["dynamic_context_parallel"] or values.get("max_seqlen_per_dp_cp_rank") is not None
    )
    if asked and not supported:
        raise RuntimeError(no_dynamic_cp())


def no_dynamic_cp() -> str:
    """What to say about dynamic context parallelism on a megatron-core that lacks it."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        here = f"megatron-core {version('megatron-core')}"
    except PackageNotFoundError:
        here = "this megatron-core"
    return (
        f"dynamic_context_parallel=True is not possible: {here} has no dynamic context parallelism, and no release "
        "up to 0.19.2 has it (https://github.com/NVIDIA/Megatron-LM/pull/5154). Set dynamic_context_parallel=False "
        "(context_parallel_size still works), or build megatron-core from a commit that contains it"
    )


@contextmanager
def _before_finalize(provider: Any, action: Callable[[Any], Any] | None) -> Iterator[None]:
    """Let ``action`` see the provider with all values set, before ``finalize`` derives the others."""
    if action is None:
        yield
        return

    def finalize() -> None:
        action(provider)
        type(provider).finalize(provider)

    provider.finalize = finalize
    try:
        yield
    finally:
        del provider.finalize
