"""The CPU reference of Marlin's layout against the one that vLLM ships for its own tests."""

from __future__ import annotations

import importlib

import cpu_marlin
import harness
import torch


def test_repack_and_permutations_equal_vllms(vllm: str) -> None:
    utils = importlib.import_module(f"{harness.QUANT}.utils.marlin_utils")
    theirs = importlib.import_module(f"{harness.QUANT}.utils.marlin_utils_test")
    k, n = 128, 256
    nibbles = torch.randint(0, 16, (k, n), generator=torch.Generator().manual_seed(0))
    words = sum(nibbles[i::8] << (4 * i) for i in range(8))
    words = torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)
    want = theirs.marlin_weights(nibbles, k, n, 4, theirs.get_weight_perm(4))
    assert torch.equal(cpu_marlin.repack(words, k, n), want)
    assert torch.equal(cpu_marlin.unpack(want, k, n), nibbles)
    scales, bias = torch.rand(k // 16, n), torch.rand(n)
    permuted = utils.marlin_permute_scales(scales, k, n, 16)
    assert torch.equal(permuted, scales[:, cpu_marlin.scale_columns(n)])
    assert torch.equal(cpu_marlin.marlin_bias(utils.marlin_permute_bias(bias)), bias)
