"""Checkpoint set-ups that fail late or say little when they fail."""

from __future__ import annotations

from typing import Any

from verl_compat.shims.notices import before, diagnosis, installed, on_error, setting


def fsdp_async_save(manager: Any, *args: Any, **kwargs: Any) -> str | None:
    """async_save with FSDP, where verl saves synchronously and never writes the tracker file."""
    config = kwargs.get("checkpoint_config")
    if config is None and len(args) > 4:
        config = args[4]
    if config is None or not setting(config, "async_save", False):
        return None
    return diagnosis(
        "checkpoint.async_save=True with FSDP",
        installed("verl", "torch"),
        "verl saves asynchronously with Megatron only, but leaves latest_checkpointed_iteration.txt to the "
        "asynchronous save all the same: it is never written, and a restarted run begins at step 0 without a word.",
        "Set actor_rollout_ref.actor.checkpoint.async_save=False (and the critic's).",
    )


def swiglu_optimizer_state(error: Exception, *args: Any, **kwargs: Any) -> str | None:
    """Megatron-FSDP's optimizer save splits SwiGLU weights and meets plain tensors."""
    if not isinstance(error, (AssertionError, AttributeError)):
        return None
    return diagnosis(
        f"the optimizer state of a SwiGLU layer could not be split ({type(error).__name__}: {error})",
        installed("megatron-core", "verl"),
        "megatron-core expects DTensors in the optimizer state under Megatron-FSDP and got plain tensors.",
        "Leave 'optimizer' out of checkpoint.save_contents, set use_megatron_fsdp=False, or use a megatron-core with "
        "Megatron-LM PR #5346.",
    )


def sync_save_strategy(error: Exception, *args: Any, **kwargs: Any) -> str | None:
    """Bridge's synchronous save hands the asynchronous strategy's arguments to a process pool."""
    if "cannot pickle" not in str(error):
        return None
    return diagnosis(
        f"the synchronous checkpoint save failed ({error})",
        installed("megatron-bridge", "megatron-core", "nvidia-resiliency-ext"),
        "Bridge passes checkpoint.async_strategy on only when async_save is set, so that a synchronous save runs with "
        "core's own default.",
        "Set checkpoint.async_save=True with the strategy that you want, or checkpoint.async_strategy='mcore' and "
        "remove nvidia-resiliency-ext.",
    )


warn_fsdp_async_save = before("verl_fsdp_async_save", fsdp_async_save)
explain_swiglu_optimizer_state = on_error("core_fsdp_swiglu_optimizer_state", swiglu_optimizer_state)
explain_sync_save_strategy = on_error("bridge_sync_save_strategy", sync_save_strategy)
