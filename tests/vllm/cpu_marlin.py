"""CPU reference of what needs a GPU: Marlin's weight layout, and NVFP4 values, in plain torch.

Written from the kernel's layout: tiles of 16 (k) x 64 (n) nibbles; a thread's 32-bit
word holds eight of them in the order 0 2 4 6 1 3 5 7.
"""

from __future__ import annotations

import torch

E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])


def _tile_order() -> torch.Tensor:
    """For each nibble position of a packed 16 x 64 tile: index into the tile laid out as 4 blocks of 16 x 16."""
    order = []
    for thread in range(32):
        column, rows = thread // 4, [2 * (thread % 4) + r for r in (0, 1, 8, 9)]
        cells = [16 * row + column + 8 * block for block in (0, 1) for row in rows]
        for quarter in range(4):
            order.append([cell + 256 * quarter for cell in cells])
    flat = torch.tensor(order)[:, [0, 2, 4, 6, 1, 3, 5, 7]]
    return flat.reshape(-1)


ORDER = _tile_order()


def repack(b_q_weight: torch.Tensor, size_k: int, size_n: int) -> torch.Tensor:
    """``(k/8, n)`` int32 of nibbles along k to Marlin's ``(k/16, 2n)`` int32."""
    shifts = torch.arange(0, 32, 4)
    nibbles = (b_q_weight.unsqueeze(1).to(torch.int64) >> shifts.view(1, 8, 1)) & 0xF
    tiles = nibbles.reshape(size_k // 16, 16, size_n // 16, 16).permute(0, 2, 1, 3).reshape(-1, ORDER.numel())
    words = tiles[:, ORDER].reshape(size_k // 16, size_n * 16 // 8, 8)
    packed = (words << shifts).sum(-1)
    return torch.where(packed >= 2**31, packed - 2**32, packed).to(torch.int32)


def unpack(packed: torch.Tensor, size_k: int, size_n: int) -> torch.Tensor:
    """The inverse of :func:`repack`: nibbles ``(k, n)``."""
    shifts = torch.arange(0, 32, 4)
    words = (packed.to(torch.int64).unsqueeze(-1) >> shifts) & 0xF
    tiles = torch.empty(words.numel() // ORDER.numel(), ORDER.numel(), dtype=torch.int64)
    tiles[:, ORDER] = words.reshape(-1, ORDER.numel())
    blocks = tiles.reshape(size_k // 16, size_n // 16, 16, 16).permute(0, 2, 1, 3)
    return blocks.reshape(size_k, size_n)


def checkpoint_weight(packed: torch.Tensor, scales: torch.Tensor, global_scale: torch.Tensor | float) -> torch.Tensor:
    """Real fp64 values ``(n, k)`` of a checkpoint's packed weight and its scales."""
    low, high = packed & 0xF, packed >> 4
    values = E2M1.to(torch.float64)[torch.stack([low, high], -1).reshape(packed.shape[0], -1).long()]
    blocks = scales.to(torch.float64).repeat_interleave(16, dim=1)
    return values * blocks * (global_scale if isinstance(global_scale, float) else global_scale.to(torch.float64))


def scale_columns(size_n: int) -> torch.Tensor:
    """Where Marlin puts each column of the block scales (groups of 16 < k): 64 columns at a time."""
    order = torch.tensor([i + 8 * j for i in range(8) for j in range(8)])
    return torch.cat([order + 64 * tile for tile in range(size_n // 64)])


def bias_columns(size_n: int) -> torch.Tensor:
    """Where Marlin puts each bias entry: 32 at a time."""
    order = torch.tensor([2 * i + j for i in range(4) for j in (0, 1, 8, 9, 16, 17, 24, 25)])
    return torch.cat([order + 32 * tile for tile in range(size_n // 32)])


def marlin_weight(
    packed: torch.Tensor, scales: torch.Tensor, global_scale: torch.Tensor, size_k: int, size_n: int, dtype: torch.dtype
) -> torch.Tensor:
    """Real fp64 values ``(n, k)`` that the Marlin kernel makes of its operands."""
    from verl_compat.shims import marlin

    values = E2M1.to(torch.float64)[unpack(packed, size_k, size_n)]
    real = marlin.dequantize(scales, global_scale, dtype)
    ordered = torch.empty_like(real)
    ordered[:, scale_columns(size_n)] = real
    return (values * ordered.repeat_interleave(16, dim=0)).T


def marlin_bias(bias: torch.Tensor) -> torch.Tensor:
    """A permuted bias put back into order."""
    ordered = torch.empty_like(bias)
    ordered[bias_columns(bias.numel())] = bias
    return ordered
