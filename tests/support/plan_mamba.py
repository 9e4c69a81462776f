"""Real Mamba and gated-delta-net mappings of Bridge, on modules that need no GPU kernels.

The layers themselves cannot be built on a CPU (mamba-ssm, flash-linear-attention); their
mappings only read a weight, the module's class name and its configuration.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any


@dataclass
class Sizes:
    """The configuration fields that the mappings read."""

    hidden_size: int = 8
    mamba_num_heads: int = 2
    mamba_head_dim: int = 4
    mamba_state_dim: int = 4
    mamba_num_groups: int = 2
    linear_key_head_dim: int = 4
    linear_num_key_heads: int = 2
    linear_value_head_dim: int = 4
    linear_num_value_heads: int = 2


def keyless_mappings() -> Iterator[tuple[str, Any]]:
    """Name and task of each mapping class; the last pipeline rank owns the weight."""
    import torch
    from megatron.bridge.models.conversion import param_mapping
    from megatron.core import parallel_state as mpu

    inner, groups, key, value = 8, 8, 8, 8
    shapes = {
        "MambaInProjMapping": (2 * (inner + groups) + 2, 8),
        "MambaConv1dMapping": (inner + 2 * groups, 1, 4),
        "GDNConv1dMapping": (2 * key + value, 1, 4),
        "GDNLinearMapping": (2 * key + 2 * value + 4, 8),
        "GDNLinearMappingSeparate": (2 * key + 2 * value + 4, 8),
    }
    two, four = {"qkvz": "hf.qkvz.weight", "ba": "hf.ba.weight"}, {n: f"hf.{n}.weight" for n in ("qkv", "z", "b", "a")}
    names: dict[str, dict[str, str]] = {"GDNLinearMapping": two, "GDNLinearMappingSeparate": four}
    owner = mpu.get_pipeline_model_parallel_rank() == mpu.get_pipeline_model_parallel_world_size() - 1
    for name, shape in shapes.items():
        cls = getattr(param_mapping, name, None)
        if cls is None:  # GDNLinearMappingSeparate: Bridge >= 0.4
            continue
        megatron = f"decoder.layers.0.mixer.{name}.weight"
        mapping = cls(megatron, **names[name]) if name in names else cls(megatron, f"hf.{name}.weight")
        module = type("ColumnParallelLinear", (torch.nn.Module,), {})()
        module.config = Sizes()
        generator = torch.Generator().manual_seed(5)
        module.weight = torch.nn.Parameter(torch.randn(*shape, generator=generator))
        module.weight.tensor_model_parallel, module.weight.partition_dim = True, 0
        yield (
            name,
            SimpleNamespace(
                mapping=mapping,
                param_weight=module.weight.detach() if owner else None,
                megatron_module=module if owner else None,
            ),
        )
