"""Fields that some bridges hard-code are read from the checkpoint's configuration instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from verl_compat.shims.check.hf_config import language_part, value
from verl_compat.shims.check.model_fields import FIELDS, UNSAID

# by top-level model type; each was found by comparing every registered configuration class with its provider
MENDED: dict[str, tuple[str, ...]] = {
    "ernie4_5_moe": ("rotary_base",),  # 500000 on 0.5.1 and 0.6.2
    "mistral3": ("layernorm_epsilon",),  # 1e-5 on 0.4.2 to 0.6.2
    "qwen2_5_omni": ("rotary_base", "activation_func"),  # transformers 5's spelling; no activation on 0.4.2
    "qwen3_omni_moe": ("rotary_base",),
    "qwen3_moe": ("moe_router_pre_softmax",),  # read from norm_topk_prob from Bridge 0.6 on
}


def read_from_checkpoint(original: Callable[..., Any], bridge: Any, *args: Any, **kwargs: Any) -> Any:
    """Around ``AutoBridge.to_megatron_provider``: before anybody can override, so overrides keep the last word."""
    provider = original(bridge, *args, **kwargs)
    config = getattr(bridge.hf_pretrained, "config", bridge.hf_pretrained)
    for name in MENDED.get(str(value(config, "model_type")), ()):
        mend(provider, config, name)
    return provider


def mend(provider: Any, config: Any, name: str) -> None:
    """Set one field of a provider as the configuration has it; nothing where either has no say."""
    field = next(field for field in FIELDS if field.name == name)
    wanted, built = field.wanted(language_part(config)), field.built(provider)
    if wanted is None or built is UNSAID or not hasattr(provider, name) or field.same(wanted, built):
        return
    if name == "activation_func":
        wanted = _activation(wanted)
    if wanted is not None:
        setattr(provider, name, wanted)


def _activation(names: set[str]) -> Callable[..., Any] | None:
    if "silu" not in names:
        return None
    import torch

    silu: Callable[..., Any] = torch.nn.functional.silu
    return silu
