"""Export-plan tests: real models in every layout, and Bridge's own export to compare with."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

OBJECT_COLLECTIVES = ("all_gather_object", "broadcast_object_list", "gather_object", "scatter_object_list")


@dataclass(frozen=True)
class Layout:
    """A model and how it is spread over the ranks.

    Attributes:
        name: for reports.
        world: number of ranks that it needs (data parallelism fills up more).
        kind: of :func:`support.tiny.write_tiny_checkpoint`.
        parallel: provider fields, also given to ``initialize_model_parallel``.
        peft: ``lora``, ``canonical_lora`` or ``dora``; None for the model alone.
    """

    name: str
    world: int
    kind: str = "qwen3"
    parallel: dict[str, int] = field(default_factory=dict)
    peft: str | None = None

    @property
    def modes(self) -> tuple[str, ...]:
        """Kinds of export that are tried."""
        return ("merged", "unmerged", "adapters") if self.peft else ("merged", "unmerged")


class Counting:
    """Counts object collectives of this process while in a ``with`` block."""

    def __init__(self) -> None:
        self.calls = 0

    def __enter__(self) -> Counting:
        import torch.distributed as dist

        self._saved = {name: getattr(dist, name) for name in OBJECT_COLLECTIVES}
        for name, original in self._saved.items():
            setattr(dist, name, self._counted(original))
        return self

    def __exit__(self, *exc_info: object) -> None:
        import torch.distributed as dist

        for name, original in self._saved.items():
            setattr(dist, name, original)

    def _counted(self, original: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            return original(*args, **kwargs)

        return call


def stream(bridge: Any, model: Any, mode: str, **kwargs: Any) -> Iterator[Any]:
    """An export of the given kind through the public methods."""
    if mode == "adapters":
        return bridge.export_adapter_weights(model, cpu=True, show_progress=False, **kwargs)
    merge = {"merged": True, "unmerged": False}[mode]
    return bridge.export_hf_weights(model, cpu=True, show_progress=False, merge_adapter_weights=merge, **kwargs)


@contextmanager
def bridge_alone() -> Iterator[None]:
    """AutoBridge's exports without any wrapper of ours: nothing of the cache runs."""
    from megatron.bridge import AutoBridge

    names = ("export_hf_weights", "export_adapter_weights")
    wrapped = {name: vars(AutoBridge)[name] for name in names}
    for name, function in wrapped.items():
        while hasattr(function, "__verl_compat__"):
            function = function.__wrapped__
        setattr(AutoBridge, name, function)
    try:
        yield
    finally:
        for name, function in wrapped.items():
            setattr(AutoBridge, name, function)


def outcome(make_stream: Any) -> tuple[list[tuple[str, Any]], str | None]:
    """The items of an export, and its error if it ended in one."""
    items: list[tuple[str, Any]] = []
    try:
        for name, tensor in make_stream():
            items.append((name, tensor.detach().clone()))
    except Exception as error:
        return items, f"{type(error).__name__}: {error}"
    return items, None


def fresh(bridge: Any, model: Any, mode: str, **kwargs: Any) -> tuple[list[tuple[str, Any]], str | None]:
    """What Bridge alone exports now."""
    with bridge_alone():
        return outcome(lambda: stream(bridge, model, mode, **kwargs))


def assert_equal(actual: tuple[list[Any], str | None], expected: tuple[list[Any], str | None], what: str) -> None:
    """Same names in the same order, same shapes, dtypes and bits, same error."""
    import torch

    assert actual[1] == expected[1], f"{what}: error {actual[1]!r}, Bridge's own {expected[1]!r}"
    names, wanted = [name for name, _ in actual[0]], [name for name, _ in expected[0]]
    assert names == wanted, f"{what}: names {sorted(set(names) ^ set(wanted))[:4]} or their order differ"
    for (name, tensor), (_, other) in zip(actual[0], expected[0], strict=False):
        assert tensor.dtype == other.dtype, f"{what}: {name} is {tensor.dtype}, Bridge's own {other.dtype}"
        assert tensor.shape == other.shape, f"{what}: {name} is {tensor.shape}, Bridge's own {other.shape}"
        same = torch.equal(tensor.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))
        assert same, f"{what}: values of {name} differ"


def train_step(model: list[Any], seed: int) -> None:
    """Change all weights in place, as an optimizer does."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in itertools.chain.from_iterable(chunk.parameters() for chunk in model):
            parameter.add_(torch.randn(parameter.shape, generator=generator).to(parameter.dtype) * 0.1)


def build(layout: Layout, path: Path) -> tuple[Any, list[Any]]:
    """AutoBridge and model chunks of a layout; model parallelism is initialised already."""
    import torch

    from support import tiny

    parallel = dict(layout.parallel)
    if parallel.get("pipeline_model_parallel_size", 1) > 1:
        parallel["pipeline_dtype"] = torch.float32
    bridge, provider = tiny.build_provider(path, **parallel)
    hooks = [peft_hook(layout.peft)] if layout.peft else []
    model = tiny.build_model(provider, hooks=hooks)
    train_step(model, seed=torch.distributed.get_rank() if torch.distributed.is_initialized() else 0)
    return bridge, model


def peft_hook(kind: str) -> Any:
    """A pre-wrap hook that adds adapters."""
    import importlib

    cls = {"lora": "LoRA", "canonical_lora": "CanonicalLoRA", "dora": "DoRA"}[kind]
    peft = getattr(importlib.import_module(f"megatron.bridge.peft.{kind}"), cls)(dim=4, alpha=8)
    return lambda model: peft(model, training=True)


def parallel_sizes(layout: Layout) -> dict[str, int]:
    """Keywords of ``initialize_model_parallel``."""
    return {name: size for name, size in layout.parallel.items() if name != "sequence_parallel"}
