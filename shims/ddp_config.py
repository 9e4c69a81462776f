"""``create_ddp_config``, as megatron.bridge.training.utils.config_utils has it from Bridge 0.5.0."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MEGATRON_FSDP_PRESETS: Mapping[str, Any] = {
    "use_distributed_optimizer": True,
    "check_for_nan_in_grad": True,
    "use_megatron_fsdp": True,
    "data_parallel_sharding_strategy": "optim_grads_params",
    "overlap_grad_reduce": True,
}
"""What Megatron-FSDP needs, unless an override says otherwise (Bridge PR #3813)."""


def create_ddp_config(
    wrap_with_ddp: bool = True,
    use_distributed_optimizer: bool = True,
    use_megatron_fsdp: bool = False,
    overrides: Mapping[str, object] | None = None,
    finalize: bool = True,
) -> Any:
    """Build Bridge's DDP configuration for a trainer outside Bridge (Bridge PR #3813, in 0.5.0).

    Args:
        wrap_with_ddp: without wrapping there is nothing to configure.
        use_distributed_optimizer: shard the optimizer state over data-parallel ranks.
        use_megatron_fsdp: start from :data:`MEGATRON_FSDP_PRESETS`.
        overrides: fields of ``DistributedDataParallelConfig``; they win over everything above.
        finalize: validate at once by ``finalize()``.

    Returns:
        ``megatron.bridge.training.config.DistributedDataParallelConfig``, or None when not wrapping.

    Raises:
        TypeError: an override names no field of the configuration.
    """
    if not wrap_with_ddp:
        return None
    from megatron.bridge.training.config import DistributedDataParallelConfig

    values: dict[str, Any] = {"use_distributed_optimizer": use_distributed_optimizer}
    if use_megatron_fsdp:
        values.update(MEGATRON_FSDP_PRESETS)
    values.update(overrides or {})
    config = DistributedDataParallelConfig(**values)
    if finalize:
        config.finalize()
    return config
