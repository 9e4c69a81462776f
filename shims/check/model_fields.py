"""What a provider must have in common with the checkpoint's configuration: one row per field."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from verl_compat.shims.check.hf_config import first, layers, rope, sliding_window, value

Reader = Callable[[Any], Any]
UNSAID: Any = object()  # what a reader returns where a provider has no say in the matter


@dataclass(frozen=True)
class Field:
    """One thing that both sides state.

    Attributes:
        name: the field of the provider that messages name.
        wanted: reads it from the Hugging Face configuration; None: that says nothing about it.
        built: reads it from the provider; None: it is not set there; UNSAID: it has no say.
        same: whether the two agree.
    """

    name: str
    wanted: Reader
    built: Reader
    same: Callable[[Any, Any], bool] = lambda wanted, built: bool(wanted == built)


def close(wanted: Any, built: Any) -> bool:
    """Equal as numbers, up to the rounding of a text form."""
    return abs(float(wanted) - float(built)) <= 1e-6 * max(abs(float(wanted)), abs(float(built)))


def _attr(name: str) -> Reader:
    return lambda provider: getattr(provider, name, None)


def _one(*names: str) -> Reader:
    return lambda config: first(config, *names)


def _number(*names: str) -> Reader:
    def read(config: Any) -> Any:
        found = first(config, *names)
        return found if isinstance(found, (int, float)) and not isinstance(found, bool) else None

    return read


# --- attention -------------------------------------------------------------------------------------------------


def _latent(config: Any) -> bool:
    """Multi-latent attention: head size and KV groups do not mean what they say."""
    return value(config, "kv_lora_rank") is not None


def _kv_groups(config: Any) -> Any:
    if _latent(config):
        return None
    return first(config, "num_key_value_heads", "num_kv_heads", "multi_query_group_num")


def _built_kv_groups(provider: Any) -> Any:
    return getattr(provider, "num_query_groups", None) or getattr(provider, "num_attention_heads", None)


def _head_size(config: Any) -> Any:
    if _latent(config):
        return None
    stated = value(config, "head_dim")
    if isinstance(stated, int):
        return stated
    hidden, heads = first(config, "hidden_size", "n_embd"), first(config, "num_attention_heads", "n_head")
    return hidden // heads if isinstance(hidden, int) and isinstance(heads, int) and heads else None


def _built_head_size(provider: Any) -> Any:
    stated = getattr(provider, "kv_channels", None)
    heads = getattr(provider, "num_attention_heads", None)
    return stated or (provider.hidden_size // heads if heads else None)


def _window_size(provider: Any) -> Any:
    window = getattr(provider, "window_size", None)
    return window[0] if isinstance(window, (tuple, list)) else window if window is not None else 0


def _qkv_bias(provider: Any) -> Any:
    return bool(getattr(provider, "add_qkv_bias", False) or getattr(provider, "add_bias_linear", False))


# --- rotary embedding --------------------------------------------------------------------------------------------


def _scaled(kind: str, *keys: str) -> Reader:
    """A rope setting that counts only under one scaling type."""

    def read(config: Any) -> Any:
        settings = rope(config)
        if settings["type"] != kind:
            return None
        return next((settings[key] for key in keys if settings.get(key) is not None), None)

    return read


def _yarn(*names: str) -> Reader:
    """A YaRN setting of a provider: GPT providers prefix it, providers of latent attention do not."""

    def read(provider: Any) -> Any:
        yarn = getattr(provider, "position_embedding_type", None) == "yarn"
        latent = getattr(provider, "multi_latent_attention", False) and getattr(provider, "rope_type", "") == "yarn"
        if not yarn and not latent:
            return "no YaRN"
        pool = [name for name in names if name.startswith("yarn_") != bool(latent)]
        return next((getattr(provider, name) for name in pool if getattr(provider, name, None) is not None), None)

    return read


def _llama3_factor(provider: Any) -> Any:
    return getattr(provider, "rope_scaling_factor", None) if getattr(provider, "rope_scaling", False) else "no scaling"


def _linear_factor(config: Any) -> Any:
    return _scaled("linear", "factor")(config)


def _partial(config: Any) -> Any:
    found = first(config, "partial_rotary_factor", "rotary_pct", "rotary_percent")
    return found if found is not None else rope(config).get("partial_rotary_factor")


def same_or_both_numbers(wanted: Any, built: Any) -> bool:
    """Close numbers; a text on the built side says what is missing there."""
    return not isinstance(built, str) and close(wanted, built)


# --- experts -----------------------------------------------------------------------------------------------------

_EXPERTS = ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts")


def _experts(config: Any) -> Any:
    found = first(config, *_EXPERTS)
    return found if isinstance(found, int) and found > 1 else None


def _of_experts(*names: str) -> Reader:
    read = _one(*names)
    return lambda config: read(config) if _experts(config) else None


def _score_function(config: Any) -> Any:
    found = _of_experts("scoring_func", "moe_router_score_function")(config)
    return found if found in ("softmax", "sigmoid") else None


def _expert_bias(config: Any) -> Any:
    return True if _of_experts("topk_method")(config) == "noaux_tc" else None


def _pre_softmax(config: Any) -> Any:
    """Softmax over all experts before the choice: what unnormalised weights of the chosen ones mean."""
    if value(config, "n_group") is not None or _score_function(config) == "sigmoid":
        return None  # DeepSeek's router normalises sigmoid scores
    normalised = _of_experts("norm_topk_prob")(config)
    return None if normalised is None else not normalised


def _built_pre_softmax(provider: Any) -> Any:
    if getattr(provider, "moe_router_score_function", "softmax") != "softmax":
        return UNSAID
    return bool(getattr(provider, "moe_router_pre_softmax", False))


# --- the rest ----------------------------------------------------------------------------------------------------

_ACTIVATIONS = {
    "silu": {"silu", "swiglu"},
    "swish": {"silu", "swiglu"},
    "gelu": {"gelu"},
    "gelu_new": {"gelu", "fast_gelu"},
    "gelu_pytorch_tanh": {"gelu", "fast_gelu"},
    "gelu_tanh": {"gelu", "fast_gelu"},
    "relu": {"relu"},
    "relu2": {"squared_relu", "relu2"},
}


def _activation(config: Any) -> Any:
    return _ACTIVATIONS.get(
        str(first(config, "hidden_activation", "hidden_act", "activation_function", "mlp_hidden_act"))
    )


def _built_activation(provider: Any) -> Any:
    function = getattr(provider, "activation_func", None)
    return str(getattr(function, "__name__", None) or function) if function is not None else None


def _mtp(config: Any) -> Any:
    return first(config, "num_nextn_predict_layers", "mtp_num_hidden_layers")


def padded(wanted: Any, built: Any) -> bool:
    """A vocabulary may be padded, never cut."""
    return int(wanted) <= int(built) < int(wanted) + 65536


# models whose configuration states what their own code does not do, or does in modules of its own
OWN_WAYS: dict[str, tuple[str, ...]] = {
    "gpt_oss": ("activation_func",),  # says silu, computes a clamped sigmoid-GELU
    "minimax_m3": ("activation_func",),
    "gemma3": ("rotary_base",),  # a pair of bases, local and global
    "gemma4": ("rotary_base", "rotary_percent"),  # as Gemma 3, and partial in its global layers only
}


def stated_otherwise(model_type: Any, field: str) -> bool:
    """Whether a field of this model type cannot be compared by its name."""
    return any(str(model_type).startswith(kind) and field in fields for kind, fields in OWN_WAYS.items())


FIELDS: tuple[Field, ...] = (
    Field("num_layers", layers, _attr("num_layers")),
    Field("hidden_size", _number("hidden_size", "n_embd"), _attr("hidden_size")),
    Field("num_attention_heads", _number("num_attention_heads", "n_head"), _attr("num_attention_heads")),
    Field("num_query_groups", _kv_groups, _built_kv_groups),
    Field("kv_channels", _head_size, _built_head_size),
    Field("window_size", sliding_window, _window_size, lambda wanted, built: built in (wanted, wanted - 1)),
    Field("add_qkv_bias", _one("attention_bias", "qkv_bias", "add_qkv_bias"), _qkv_bias),
    Field("rotary_base", lambda config: rope(config)["theta"], _attr("rotary_base"), close),
    Field("rotary_percent", _partial, _attr("rotary_percent"), close),
    Field("rope_scaling_factor", _scaled("llama3", "factor"), _llama3_factor, same_or_both_numbers),
    Field("seq_len_interpolation_factor", _linear_factor, _attr("seq_len_interpolation_factor"), close),
    Field(
        "yarn_rotary_scaling_factor",
        _scaled("yarn", "factor"),
        _yarn("yarn_rotary_scaling_factor", "rotary_scaling_factor"),
        same_or_both_numbers,
    ),
    Field(
        "yarn_original_max_position_embeddings",
        _scaled("yarn", "original"),
        _yarn("yarn_original_max_position_embeddings", "original_max_position_embeddings"),
        same_or_both_numbers,
    ),
    Field("yarn_beta_fast", _scaled("yarn", "beta_fast"), _yarn("yarn_beta_fast", "beta_fast"), same_or_both_numbers),
    Field("yarn_beta_slow", _scaled("yarn", "beta_slow"), _yarn("yarn_beta_slow", "beta_slow"), same_or_both_numbers),
    Field("yarn_mscale", _scaled("yarn", "mscale"), _yarn("yarn_mscale", "mscale"), same_or_both_numbers),
    Field(
        "yarn_mscale_all_dim",
        _scaled("yarn", "mscale_all_dim"),
        _yarn("yarn_mscale_all_dim", "mscale_all_dim"),
        same_or_both_numbers,
    ),
    Field("num_moe_experts", _experts, _attr("num_moe_experts")),
    Field(
        "moe_router_topk",
        _of_experts("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k"),
        _attr("moe_router_topk"),
    ),
    Field("moe_ffn_hidden_size", _of_experts("moe_intermediate_size"), _attr("moe_ffn_hidden_size")),
    Field("moe_router_score_function", _score_function, _attr("moe_router_score_function")),
    Field("moe_router_enable_expert_bias", _expert_bias, _attr("moe_router_enable_expert_bias")),
    Field(
        "moe_router_topk_scaling_factor",
        _of_experts("routed_scaling_factor"),
        _attr("moe_router_topk_scaling_factor"),
        close,
    ),
    Field("moe_router_pre_softmax", _pre_softmax, _built_pre_softmax),
    Field("mtp_num_layers", _mtp, lambda provider: getattr(provider, "mtp_num_layers", None) or 0),
    Field(
        "layernorm_epsilon",
        _number(
            "rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps", "layernorm_epsilon", "norm_eps", "norm_epsilon"
        ),
        _attr("layernorm_epsilon"),
        close,
    ),
    Field("vocab_size", _number("vocab_size", "padded_vocab_size"), _attr("vocab_size"), padded),
    Field(
        "activation_func", _activation, _built_activation, lambda wanted, built: any(name in built for name in wanted)
    ),
    Field(
        "share_embeddings_and_output_weights", _one("tie_word_embeddings"), _attr("share_embeddings_and_output_weights")
    ),
)
"""The fields that are compared, in the order in which they are told."""
