"""The four names that megatron.bridge.peft reads when it is imported."""

from types import SimpleNamespace

import torch


class Linear(torch.nn.Module):
    pass


class LayerNormLinear(torch.nn.Module):
    pass


class GroupedLinear(torch.nn.Module):
    pass


ops = SimpleNamespace(Sequential=torch.nn.Sequential)
