"""Tiny real models: Hugging Face checkpoints with random weights, and megatron models built from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

VOCAB_SIZE = 512

_COMMON = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
}
_MOE = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
KINDS = ("qwen3", "qwen3_moe")


def write_tiny_checkpoint(path: Path | str, kind: str = "qwen3", *, seed: int = 1234, **config: Any) -> Path:
    """Write a real Hugging Face checkpoint (config.json and safetensors) with random fp32 weights.

    Args:
        path: folder to write to; made if missing.
        kind: ``"qwen3"`` (dense) or ``"qwen3_moe"``.
        seed: of the weights: equal seeds give equal checkpoints.
        **config: fields of the Hugging Face config that differ from the tiny default.

    Returns:
        The folder.
    """
    import torch
    import transformers

    if kind not in KINDS:
        raise ValueError(f"unknown kind {kind!r}: expected one of {', '.join(KINDS)}")
    if kind == "qwen3":
        config_cls, model_cls, fields = transformers.Qwen3Config, transformers.Qwen3ForCausalLM, {}
    else:
        config_cls, model_cls, fields = transformers.Qwen3MoeConfig, transformers.Qwen3MoeForCausalLM, _MOE
    torch.manual_seed(seed)
    model = model_cls(config_cls(**{**_COMMON, **fields, **config})).float()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("norm.weight"):  # all ones by default: a swap of two would go unseen
                parameter.uniform_(0.5, 1.5)
    path = Path(path)
    model.save_pretrained(path, safe_serialization=True)
    return path


def read_checkpoint(path: Path | str) -> dict[str, Any]:
    """All tensors of a safetensors checkpoint, by name."""
    from safetensors.torch import load_file

    state: dict[str, Any] = {}
    for file in sorted(Path(path).glob("*.safetensors")):
        state.update(load_file(file))
    return state


def local_layer_spec(config: Any, *args: Any, **kwargs: Any) -> Any:
    """The layer spec of megatron.core that needs no Transformer Engine (a ``transformer_layer_spec``)."""
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec

    return get_gpt_layer_local_spec(
        num_experts=config.num_moe_experts,
        moe_grouped_gemm=False,
        qk_layernorm=config.qk_layernorm,
        normalization=config.normalization,
    )


def mixed_layer_spec(config: Any, *args: Any, **kwargs: Any) -> Any:
    """As :func:`local_layer_spec`, but obeying ``moe_layer_freq``: dense and MoE layers in one model."""
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec

    return get_gpt_decoder_block_spec(config, use_transformer_engine=False, normalization=config.normalization)


CPU_OVERRIDES: Mapping[str, Any] = {
    "transformer_layer_spec": local_layer_spec,
    "use_cpu_initialization": True,
    "gradient_accumulation_fusion": False,
    "persist_layer_norm": False,
    "masked_softmax_fusion": False,
    "bias_dropout_fusion": False,
    "bias_activation_fusion": False,
    "apply_rope_fusion": False,
    "cross_entropy_loss_fusion": False,
    "moe_grouped_gemm": False,
    "moe_permute_fusion": False,
    "moe_router_fusion": False,
    "moe_token_dispatcher_type": "allgather",
    "moe_router_load_balancing_type": "none",
    "kv_channels": 16,
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
}
"""Provider fields that a model on a CPU needs."""


def configure_for_cpu(provider: Any, **overrides: Any) -> Any:
    """Set fp32, :data:`CPU_OVERRIDES` as far as the provider has them, then ``overrides``; not finalized."""
    import torch

    for name, value in CPU_OVERRIDES.items():
        if hasattr(provider, name):
            setattr(provider, name, value)
    provider.params_dtype, provider.autocast_dtype = torch.float32, torch.float32
    provider.fp16, provider.bf16 = False, False
    for name, value in overrides.items():
        setattr(provider, name, value)
    return provider


def build_provider(path: Path | str, *, finalize: bool = True, **overrides: Any) -> tuple[Any, Any]:
    """AutoBridge and a provider that builds on a CPU, from a checkpoint folder.

    Args:
        path: what :func:`write_tiny_checkpoint` wrote.
        finalize: call ``provider.finalize()``.
        **overrides: provider fields to set (parallel sizes, for one).

    Returns:
        ``(bridge, provider)``.
    """
    from megatron.bridge import AutoBridge

    bridge = AutoBridge.from_hf_pretrained(str(path))
    provider = configure_for_cpu(bridge.to_megatron_provider(load_weights=False), **overrides)
    if finalize:
        provider.finalize()
    return bridge, provider


def build_model(provider: Any, *, hooks: list[Callable[[Any], Any]] | None = None, **kwargs: Any) -> list[Any]:
    """Model chunks from a finalized provider, fp32, without DDP unless ``kwargs`` say so.

    Args:
        provider: from :func:`build_provider`.
        hooks: pre-wrap hooks, registered on the provider in this order.
        **kwargs: of ``provide_distributed_model``.
    """
    for hook in hooks or []:
        provider.register_pre_wrap_hook(hook)
    kwargs.setdefault("wrap_with_ddp", False)
    return provider.provide_distributed_model(use_cpu_initialization=True, data_parallel_random_init=False, **kwargs)


def export_state(bridge: Any, model: list[Any], **kwargs: Any) -> dict[str, Any]:
    """The model's weights in Hugging Face names, on the CPU."""
    exported = bridge.export_hf_weights(model, cpu=True, show_progress=False, **kwargs)
    return {name: tensor.detach().clone() for name, tensor in exported}


def assert_same_tensors(actual: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Equal names, shapes, dtypes and bits; the error names what differs."""
    import torch

    missing, extra = sorted(expected.keys() - actual.keys()), sorted(actual.keys() - expected.keys())
    assert not missing, f"missing: {missing[:5]} ({len(missing)} in all)"
    assert not extra, f"not in the checkpoint: {extra[:5]} ({len(extra)} in all)"
    differ = [
        name
        for name, tensor in expected.items()
        if actual[name].dtype != tensor.dtype or not torch.equal(actual[name], tensor)
    ]
    assert not differ, f"differ: {differ[:5]} ({len(differ)} of {len(expected)})"


def forward_logits(model: list[Any], tokens: Any) -> Any:
    """Logits (or values) of a single-stage model.

    Args:
        model: one chunk in a list.
        tokens: integer tensor [batch, sequence].

    Returns:
        What forward gives: [batch, sequence, vocabulary], or [batch, sequence, 1] for a value head.
    """
    import torch

    batch, length = tokens.shape
    positions = torch.arange(length).expand(batch, length)
    causal = torch.triu(torch.ones(length, length, dtype=torch.bool), diagonal=1)[None, None]
    return model[0](input_ids=tokens, position_ids=positions, attention_mask=causal)
