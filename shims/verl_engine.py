"""What verl 0.8's Megatron engine gets wrong before a model is built."""

from __future__ import annotations

import inspect
from typing import Any

from verl_compat.shims.configure_provider import enable_routing_replay, no_dynamic_cp


def build_tf_config_with_replay(original: Any, self: Any) -> Any:
    """Wrap ``MegatronEngine._build_tf_config``: routing replay is set on the finished provider.

    verl 0.8 passes ``enable_routing_replay`` among the overrides, which no provider has; its own
    router patch reads it as an attribute of the config later on.
    """
    if not getattr(self, "enable_routing_replay", False) or self.engine_config.vanilla_mbridge:
        return original(self)
    self.enable_routing_replay = False
    try:
        result = original(self)
    finally:
        self.enable_routing_replay = True
    enable_routing_replay(self.provider)
    return result


def refuse_dynamic_cp_first(original: Any, self: Any) -> Any:
    """Wrap ``MegatronEngine._init_device_mesh``.

    Raises:
        RuntimeError: dynamic context parallelism was asked for and megatron-core lacks it.
    """
    if getattr(self.engine_config, "dynamic_context_parallel", False):
        from megatron.core import parallel_state

        if "dynamic_context_parallel" not in inspect.signature(parallel_state.initialize_model_parallel).parameters:
            raise RuntimeError(no_dynamic_cp())
    return original(self)
