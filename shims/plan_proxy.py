"""The proxy behind ``plan_cache.wrap``."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import wrapt

from verl_compat.shims import plan_cache

if TYPE_CHECKING:
    _Proxy = wrapt.ObjectProxy[Any]
else:
    _Proxy = wrapt.ObjectProxy


class CachedBridge(_Proxy):
    """An AutoBridge in everything; its exports plan once.

    ``isinstance(proxy, AutoBridge)`` holds.  A copy is a proxy of a copied bridge; pickling
    gives a proxy again.
    """

    def export_hf_weights(self, *args: Any, **kwargs: Any) -> Any:
        """As ``AutoBridge.export_hf_weights``."""
        bridge = self.__wrapped__
        return plan_cache.export_hf_weights(type(bridge).export_hf_weights, bridge, *args, **kwargs)

    def export_adapter_weights(self, *args: Any, **kwargs: Any) -> Any:
        """As ``AutoBridge.export_adapter_weights``."""
        bridge = self.__wrapped__
        return plan_cache.export_adapter_weights(type(bridge).export_adapter_weights, bridge, *args, **kwargs)

    def __copy__(self) -> CachedBridge:
        return CachedBridge(copy.copy(self.__wrapped__))

    def __deepcopy__(self, memo: dict[int, Any]) -> CachedBridge:
        return CachedBridge(copy.deepcopy(self.__wrapped__, memo))

    def __reduce__(self) -> tuple[Any, ...]:
        return CachedBridge, (self.__wrapped__,)

    def __reduce_ex__(self, _protocol: Any) -> tuple[Any, ...]:
        return self.__reduce__()


def proxy(bridge: Any) -> CachedBridge:
    """See :func:`verl_compat.shims.plan_cache.wrap`."""
    if isinstance(bridge, CachedBridge):
        return bridge
    try:
        from megatron.bridge.models.conversion.auto_bridge import AutoBridge
    except ModuleNotFoundError as error:
        raise TypeError(
            f"plan_cache.wrap() takes a megatron.bridge AutoBridge, got {_name(bridge)}, and megatron.bridge "
            f"cannot be imported ({error}); install megatron-bridge"
        ) from error
    if not isinstance(bridge, AutoBridge):
        raise TypeError(
            f"plan_cache.wrap() takes a megatron.bridge AutoBridge, got {_name(bridge)}; "
            "make one with AutoBridge.from_hf_pretrained(path)"
        )
    return CachedBridge(bridge)


def _name(thing: Any) -> str:
    cls = thing if isinstance(thing, type) else type(thing)
    kind = "the class " if isinstance(thing, type) else "a "
    return f"{kind}{cls.__module__}.{cls.__qualname__}"
