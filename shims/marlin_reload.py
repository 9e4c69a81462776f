"""Reload NVFP4 weights into a running vLLM layer without moving one tensor.

vLLM converts a layer once, from the checkpoint's format to its kernel's: it deletes,
renames, repacks and pads.  A trainer that sends new weights every step needs the
checkpoint format back, the same conversion again, and the results at the *same
addresses*, because CUDA graphs and kernel objects hold on to them.

:class:`ReloadState` does this around vLLM's own ``process_weights_after_loading``:

1. before the first conversion it records what the checkpoint parameters look like;
2. after it, which tensors came out (the live ones);
3. :meth:`ReloadState.restore` puts fresh checkpoint-format parameters on the layer;
4. vLLM's own conversion runs again on those, and the results are copied into the live
   tensors, which go back onto the layer as the very same objects.

What is kept for a sync that does not deliver it (global scales, bias) is kept on the host:
``sleep(level=2)`` discards what lies in the pool in which the model was loaded.

Because the conversion is vLLM's, padding (0.24 and newer), permuted bias, shared
expert factors, kernel choice and whatever comes next are right by construction.
Upstream: verl's ``utils/modelopt/vllm_modelopt_patch.py`` and ``utils/qat/vllm_patch.py``
(0.7.1 - 0.9.1), which repeat vLLM's conversion by hand, as it was at vLLM 0.20 and 0.15.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from verl_compat.shims import marlin_host
from verl_compat.shims.marlin_delivery import LOADERS, Delivered, recorded
from verl_compat.shims.marlin_tensors import attributes, copy_into, copy_tensors, get, put, tensors

if TYPE_CHECKING:
    import torch

logger = logging.getLogger("verl_compat.marlin")

_STATE = "_verl_compat_reload"

# Parameters that a checkpoint may fill and that a conversion consumes.  Everything else
# on a layer (a router's correction bias, say, shared with another module) is not touched.
DENSE = (
    "weight",
    "weight_packed",
    "weight_scale",
    "weight_scale_2",
    "weight_global_scale",
    "input_scale",
    "input_global_scale",
    "bias",
)
CHECKPOINT_NAMES = frozenset(DENSE) | {f"{gemm}_{name}" for gemm in ("w13", "w2") for name in DENSE}

# Kept between loads, for a sync that does not deliver them.
KEPT = ("weight_scale_2", "weight_global_scale", "input_scale", "input_global_scale", "bias")


_layers: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()


def layers() -> list[torch.nn.Module]:
    """The living layers of this process that were converted here."""
    return list(_layers)


def in_progress() -> str | None:
    """A text where a layer waits for weights or was left half converted."""
    waiting = [layer for layer in layers() if (state := ReloadState.of(layer)) is not None and state.restored]
    if not waiting:
        return None
    return f"an NVFP4 reload is in progress ({len(waiting)} layers hold checkpoint parameters); try again after it"


@dataclass
class Slot:
    """What a checkpoint parameter looks like, enough to make it again.

    Attributes:
        shape, dtype, device: of its data.
        cls: parameter class (vLLM's carry the loading logic).
        attrs: instance attributes, with the weight loader.
        value: last checkpoint value of a global scale or bias, on the host; else None.
        delivered: what the loader delivered to the parameter that :meth:`make` made last; None
            where it has no loader.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    cls: type
    attrs: dict[str, Any]
    value: torch.Tensor | None = None
    delivered: Delivered | None = None

    @classmethod
    def of(cls, parameter: torch.nn.Parameter) -> Slot:
        """Record one parameter."""
        return cls(
            shape=tuple(parameter.shape),
            dtype=parameter.dtype,
            device=parameter.device,
            cls=type(parameter),
            attrs=dict(vars(parameter)),
        )

    def fits(self, tensor: Any) -> bool:
        """Whether a tensor has this slot's shape and dtype."""
        return tensor is not None and tuple(tensor.shape) == self.shape and tensor.dtype == self.dtype

    def keep(self, value: torch.Tensor) -> None:
        """Remember a host copy of the checkpoint's value."""
        self.value = value

    def make(self, device: torch.device | None) -> torch.nn.Parameter:
        """A fresh parameter of the same class with the same loader, which notes what it delivers."""
        import torch

        where = self.device if device is None else device
        data = torch.empty(self.shape, dtype=self.dtype, device=where)
        if self.value is not None:
            data.copy_(self.value, non_blocking=True)  # from pageable memory: staged before the call returns
        # The class's own constructor is not called: its arguments differ by class and release.
        parameter: torch.nn.Parameter = torch.Tensor._make_subclass(self.cls, data, False)
        vars(parameter).update(self.attrs)
        delivered = Delivered()
        loaders = {name: recorded(loader, delivered) for name in LOADERS if callable(loader := self.attrs.get(name))}
        vars(parameter).update(loaders)
        self.delivered = delivered if loaders else None
        return parameter


@dataclass
class ReloadState:
    """Everything one layer needs to be loaded again (kept on the layer).

    Attributes:
        slots: checkpoint parameters by name.
        live: tensors that the kernel reads, by attribute name, as first converted.
        method_live: objects (kernels, quant configs) that the first conversion put on the
            quantisation method and that captured graphs may refer to.
        restored: checkpoint-format parameters are on the layer, waiting for data.
        compressed_tensors: the checkpoint's global scales are divisors.
    """

    slots: dict[str, Slot] = field(default_factory=dict)
    live: dict[str, torch.Tensor] = field(default_factory=dict)
    method_live: dict[str, Any] = field(default_factory=dict)
    restored: bool = False
    compressed_tensors: bool = False

    @classmethod
    def of(cls, layer: torch.nn.Module) -> ReloadState | None:
        """The state of a layer that was converted before, else None."""
        state = vars(layer).get(_STATE)
        return state if isinstance(state, cls) else None

    @classmethod
    def start(cls, layer: torch.nn.Module) -> ReloadState:
        """Record the checkpoint parameters of a layer about to be converted first."""
        return cls(slots={n: Slot.of(p) for n, p in checkpoint_parameters(layer)})

    def restore(self, layer: torch.nn.Module, device: torch.device | None = None) -> int:
        """Put fresh checkpoint-format parameters on the layer; how many."""
        for name, slot in self.slots.items():
            vars(layer).pop(name, None)
            layer.register_parameter(name, slot.make(device))
        self.restored = True
        return len(self.slots)

    def holds_checkpoint(self, layer: torch.nn.Module) -> bool:
        """Whether the layer has checkpoint-format parameters rather than converted ones."""
        for name, slot in self.slots.items():
            parameter = layer._parameters.get(name)
            if not slot.fits(parameter):
                return False
            if not self.restored and name.endswith("weight") and parameter is self.live.get(name):
                return False
        return bool(self.slots)

    def remember(self, layer: torch.nn.Module) -> None:
        """Keep the checkpoint's own global scales and bias, before they are repaired and consumed."""
        for name, slot in self.slots.items():
            parameter = layer._parameters.get(name)
            if name.endswith(KEPT) and parameter is not None and slot.fits(parameter):
                marlin_host.keep(parameter.data, slot.keep)

    def untouched(self) -> bool:
        """Whether the sync delivered nothing at all to a layer that waits for weights."""
        told = [slot.delivered for slot in self.slots.values() if slot.delivered is not None]
        return self.restored and bool(told) and not any(delivered.any for delivered in told)

    def missing(self, layer: torch.nn.Module) -> Iterator[str]:
        """Checkpoint parameters, or parts, that hold nothing but uninitialised memory."""
        for name, slot in self.slots.items():
            if self.restored and slot.delivered is not None and slot.value is None:
                yield from slot.delivered.missing(layer, name, slot.shape)

    def go_back(self, layer: torch.nn.Module) -> None:
        """Put the live tensors back as they are: the sync brought nothing for this layer."""
        for name in self.slots:
            layer._parameters.pop(name, None)
        for name, live in self.live.items():
            put(layer, name, live)
        self.restored = False

    def adopt(self, method: Any, layer: torch.nn.Module, before: Snapshot) -> None:
        """After the first conversion: what it produced is live from now on."""
        for name, tensor in tensors(layer):
            if name in CHECKPOINT_NAMES or before.tensors.get(name) is not tensor:
                self.live[name] = tensor
        for name, value in attributes(method):
            if before.method.get(name) is not value:
                self.method_live[name] = value
        setattr(layer, _STATE, self)
        _layers.add(layer)

    def merge(self, method: Any, layer: torch.nn.Module) -> None:
        """After a later conversion: copy its results into the live tensors and put those back.

        Raises:
            RuntimeError: a result has another shape or dtype than the live tensor.
        """
        for name, live in self.live.items():
            new = get(layer, name)
            if new is not None and new is not live:
                copy_into(live, new, f"{type(layer).__name__}.{name}")
            put(layer, name, live)
        done = {id(live) for live in self.live.values()}
        for name, value in self.method_live.items():
            new = vars(method).get(name)
            if new is not value:
                copy_tensors(value, new, done)
                setattr(method, name, value)
        self.restored = False


@dataclass
class Snapshot:
    """Identities of a layer's tensors and of its method's attributes before a conversion."""

    tensors: dict[str, Any]
    method: dict[str, Any]

    @classmethod
    def take(cls, method: Any, layer: torch.nn.Module) -> Snapshot:
        """Record them."""
        return cls(dict(tensors(layer)), dict(attributes(method)))


def checkpoint_parameters(layer: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """The layer's own parameters that a checkpoint fills."""
    for name, parameter in layer._parameters.items():
        if parameter is not None and name in CHECKPOINT_NAMES:
            yield name, parameter


def convert(
    original: Callable[[Any, Any], None],
    method: Any,
    layer: torch.nn.Module,
    before_conversion: Callable[[torch.nn.Module, bool], None],
    compressed_tensors: bool = False,
) -> None:
    """Run vLLM's own conversion of one layer, first time or any later time.

    Args:
        original: vLLM's ``process_weights_after_loading``.
        method: the quantisation method or scheme (``self`` of ``original``).
        before_conversion: called with the layer and whether this is the first load, once
            checkpoint data is on it; may repair scale values in place.
        compressed_tensors: the checkpoint's global scales are divisors.

    A layer that is already in kernel format is left alone: converting it twice would
    destroy it.

    Raises:
        RuntimeError: an earlier conversion failed half way, and no new weights were sent since;
            or a parameter was not delivered.
    """
    state = ReloadState.of(layer)
    if state is None:
        state = ReloadState.start(layer)
        state.compressed_tensors = compressed_tensors
        state.remember(layer)
        before_conversion(layer, True)
        marlin_host.read()
        before = Snapshot.take(method, layer)
        original(method, layer)
        state.adopt(method, layer, before)
        return
    if not state.holds_checkpoint(layer):
        if state.restored:
            raise RuntimeError(
                f"verl-compat: {type(layer).__name__} was left half converted when an earlier conversion failed. Put "
                "checkpoint parameters on the model again (verl's prepare_..._for_...), send all weights, then convert."
            )
        logger.debug("%s is in kernel format already: not converted again", type(layer).__name__)
        return
    if missing := list(state.missing(layer)):
        raise NotDeliveredError({str(getattr(layer, "prefix", type(layer).__name__)): missing})
    state.remember(layer)
    before_conversion(layer, False)
    original(method, layer)
    state.merge(method, layer)


class NotDeliveredError(RuntimeError):
    """A sync did not deliver what would now be converted from uninitialised memory."""

    def __init__(self, missing: dict[str, list[str]]) -> None:
        names = [f"{layer}.{name}" for layer, found in missing.items() for name in found]
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        super().__init__(
            f"verl-compat: this sync did not deliver {', '.join(names[:_SHOWN])}{more}. The parameters of a reload are "
            "uninitialised until they are loaded, so nothing was converted. Send all weights of the model."
        )


_SHOWN = 8
