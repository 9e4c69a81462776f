"""Values that are kept on the host, and flags, read from the device in one copy.

Whatever is kept on the device from one load to the next may be gone: ``sleep(level=2)`` discards
the pool in which vLLM loaded the model, with everything that was made while it did.
Upstream: vLLM's ``CuMemAllocator`` (0.12 - 0.33), which saves registered buffers only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_ALIGNED = 16  # bytes; the pieces of the copy are viewed as any dtype

_flags: list[tuple[torch.Tensor, Callable[[bool], None]]] = []
_values: list[tuple[torch.Tensor, Callable[[torch.Tensor], None]]] = []


def flag(value: torch.Tensor, sink: Callable[[bool], None]) -> None:
    """Give a one-element bool tensor to ``sink`` as a bool, with the next :func:`read`."""
    _flags.append((value.reshape(1), sink))


def keep(value: torch.Tensor, sink: Callable[[torch.Tensor], None]) -> None:
    """Give ``sink`` a host tensor of the value that a tensor has now, with the next :func:`read`."""
    _values.append((value.detach().clone(), sink))


def read() -> None:
    """One copy to the host, and one wait for the device, for all that is asked for."""
    import torch

    flags, values = list(_flags), list(_values)
    forget()
    if not flags and not values:
        return
    pieces = [_bytes(value) for value, _ in values] + [value.view(torch.uint8) for value, _ in flags]
    # An engine has one device; only the tests mix several.
    host = torch.cat([piece.to(pieces[0].device) for piece in pieces]).cpu()
    at = 0
    for value, keep_it in values:
        size = value.numel() * value.element_size()
        keep_it(host[at : at + size].view(value.dtype).reshape(value.shape))
        at += -(-size // _ALIGNED) * _ALIGNED
    if flags:
        for (_, tell), is_set in zip(flags, host[at:].tolist(), strict=True):
            tell(bool(is_set))


def forget() -> None:
    """Drop what is asked for and not read yet."""
    _flags.clear()
    _values.clear()


def _bytes(value: torch.Tensor) -> torch.Tensor:
    import torch

    flat = value.contiguous().reshape(-1).view(torch.uint8)
    return torch.nn.functional.pad(flat, (0, -flat.numel() % _ALIGNED))
