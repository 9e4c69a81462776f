"""Module types that Bridge's weight conversion knows by class name, and what was added in Bridge 0.5.0."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ADDED_IN_0_5: Mapping[str, frozenset[str]] = {
    "replicated": frozenset({"LinearForLastLayer"}),
    "column": frozenset({"QuantColumnParallelLinear"}),
    "row": frozenset({"QuantRowParallelLinear"}),
}


def lacks_module_types(module: Any) -> bool:
    """Feature test on Bridge's ``param_mapping``: a type that 0.5.0 registers is not there."""
    registry = module.AutoMapping._MODULE_TYPE_REGISTRY
    return any(not types <= registry[parallelism] for parallelism, types in ADDED_IN_0_5.items())
