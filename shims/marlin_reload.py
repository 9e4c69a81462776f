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

Because the conversion is vLLM's, padding (0.24 and newer), permuted bias, shared
expert factors, kernel choice and whatever comes next are right by construction.
Upstream: verl's ``utils/modelopt/vllm_modelopt_patch.py`` and ``utils/qat/vllm_patch.py``
(0.7.1 - 0.9.1), which repeat vLLM's conversion by hand, as it was at vLLM 0.20 and 0.15.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

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
_KEPT = ("weight_scale_2", "weight_global_scale", "input_scale", "input_global_scale", "bias")


@dataclass
class Slot:
    """What a checkpoint parameter looks like, enough to make it again.

    Attributes:
        shape, dtype, device: of its data.
        cls: parameter class (vLLM's carry the loading logic).
        attrs: instance attributes, with the weight loader.
        value: last checkpoint value of a global scale or bias, else None.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    cls: type
    attrs: dict[str, Any]
    value: torch.Tensor | None = None

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

    def make(self, device: torch.device | None) -> torch.nn.Parameter:
        """A fresh parameter of the same class with the same loader."""
        import torch

        where = self.device if device is None else device
        data = torch.empty(self.shape, dtype=self.dtype, device=where)
        if self.value is not None:
            data.copy_(self.value)
        # The class's own constructor is not called: its arguments differ by class and release.
        parameter: torch.nn.Parameter = torch.Tensor._make_subclass(self.cls, data, False)
        vars(parameter).update(self.attrs)
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
    """

    slots: dict[str, Slot] = field(default_factory=dict)
    live: dict[str, torch.Tensor] = field(default_factory=dict)
    method_live: dict[str, Any] = field(default_factory=dict)
    restored: bool = False

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
        """Keep the checkpoint's global scales and bias, before the conversion consumes them."""
        for name, slot in self.slots.items():
            parameter = layer._parameters.get(name)
            if name.endswith(_KEPT) and parameter is not None and slot.fits(parameter):
                slot.value = parameter.data.detach().clone()

    def adopt(self, method: Any, layer: torch.nn.Module, before: Snapshot) -> None:
        """After the first conversion: what it produced is live from now on."""
        for name, tensor in tensors(layer):
            if name in CHECKPOINT_NAMES or before.tensors.get(name) is not tensor:
                self.live[name] = tensor
        for name, value in attributes(method):
            if before.method.get(name) is not value:
                self.method_live[name] = value
        setattr(layer, _STATE, self)

    def merge(self, method: Any, layer: torch.nn.Module) -> None:
        """After a later conversion: copy its results into the live tensors and put those back.

        Raises:
            RuntimeError: a result has another shape or dtype than the live tensor.
        """
        for name, live in self.live.items():
            new = _get(layer, name)
            if new is not None and new is not live:
                copy_into(live, new, f"{type(layer).__name__}.{name}")
            _put(layer, name, live)
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


def tensors(layer: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """All tensors held directly by a layer: parameters, buffers, plain attributes."""
    import torch

    for table in (layer._parameters, layer._buffers, vars(layer)):
        for name, value in table.items():
            if isinstance(value, torch.Tensor):
                yield name, value


def attributes(method: Any) -> Iterator[tuple[str, Any]]:
    """Instance attributes of a quantisation method (none for objects without ``__dict__``)."""
    yield from getattr(method, "__dict__", {}).items()


def _get(layer: torch.nn.Module, name: str) -> torch.Tensor | None:
    import torch

    for table in (layer._parameters, layer._buffers, vars(layer)):
        value = table.get(name)
        if isinstance(value, torch.Tensor):
            return value
    return None


def _put(layer: torch.nn.Module, name: str, live: torch.Tensor) -> None:
    """Set a tensor attribute to exactly this object, where such objects belong."""
    import torch

    if isinstance(live, torch.nn.Parameter):
        vars(layer).pop(name, None)
        layer._parameters[name] = live
        return
    layer._parameters.pop(name, None)
    if name in layer._buffers:
        layer._buffers[name] = live
    else:
        vars(layer)[name] = live


def copy_into(live: torch.Tensor, new: torch.Tensor, what: str) -> None:
    """Copy a conversion's result into the live tensor, address and layout unchanged."""
    if live.data_ptr() == new.data_ptr() and live.shape == new.shape:
        return
    if live.shape != new.shape or live.dtype != new.dtype:
        raise RuntimeError(
            f"verl-compat: reloading {what} gave {tuple(new.shape)} {new.dtype}, but the running kernel holds "
            f"{tuple(live.shape)} {live.dtype}. Weights of another shape need a new engine."
        )
    live.data.copy_(new.data)


def copy_tensors(live: Any, new: Any, seen: set[int] | None = None) -> None:
    """Copy every tensor reachable from ``new`` into its counterpart in ``live``.

    For kernel and quant-config objects that hold tensors which are no attribute of the
    layer (1 / input scale, for instance).  Follows attributes of objects of one and the
    same class, dicts, lists and tuples; stops at modules and at anything that differs.
    """
    import torch

    seen = set() if seen is None else seen
    if live is new or id(live) in seen or type(live) is not type(new):
        return
    seen.add(id(live))
    if isinstance(live, torch.Tensor):
        if live.shape == new.shape and live.dtype == new.dtype and live.data_ptr() != new.data_ptr():
            live.data.copy_(new.data)
    elif isinstance(live, torch.nn.Module):
        return
    elif isinstance(live, (list, tuple)):
        for mine, other in zip(live, new, strict=False):
            copy_tensors(mine, other, seen)
    else:
        mine_all = live if isinstance(live, dict) else getattr(live, "__dict__", {})
        other_all = new if isinstance(new, dict) else getattr(new, "__dict__", {})
        for key, mine in mine_all.items():
            if key in other_all:
                copy_tensors(mine, other_all[key], seen)


def convert(
    original: Callable[[Any, Any], None],
    method: Any,
    layer: torch.nn.Module,
    before_conversion: Callable[[torch.nn.Module, bool], None],
) -> None:
    """Run vLLM's own conversion of one layer, first time or any later time.

    Args:
        original: vLLM's ``process_weights_after_loading``.
        method: the quantisation method or scheme (``self`` of ``original``).
        before_conversion: called with the layer and whether this is the first load, once
            checkpoint data is on it; may repair scale values in place.

    A layer that is already in kernel format is left alone: converting it twice would
    destroy it.

    Raises:
        RuntimeError: an earlier conversion failed half way, and no new weights were sent since.
    """
    state = ReloadState.of(layer)
    if state is None:
        state = ReloadState.start(layer)
        before_conversion(layer, True)
        state.remember(layer)
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
    before_conversion(layer, False)
    state.remember(layer)
    original(method, layer)
    state.merge(method, layer)
