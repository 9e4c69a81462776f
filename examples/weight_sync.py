"""The main job on a CPU: verl's own Megatron engine trains, syncs, saves and resumes on an older Bridge.

Needs verl 0.9.1, megatron-bridge 0.4.2 and megatron-core 0.17.1 (``tox run -e demo`` installs them); no GPU.
Without verl-compat (``VERL_COMPAT=off``) it stops at verl's ImportError, with exit status 1.

Each part builds its model from a Hugging Face checkpoint (random weights) by verl's engine and AutoBridge.

1. LoRA actor (Qwen3): two steps, an export before and after each. Before: the checkpoint, bit for bit.
   After: what the ``peft`` package makes of the saved adapter and the same checkpoint.
2. MoE actor (Qwen3-MoE): two full steps; each export equals a training by transformers alone.
3. Both again: a checkpoint by verl's MegatronCheckpointManager after step 1, a new engine that
   loads it, and its step 2: every exported tensor equals the uninterrupted run bit for bit.
4. MoE critic with ``freeze_moe_router``: routers stay, the rest is trained.
"""

from __future__ import annotations

import os

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import contextlib
import io
import sys
import tempfile
import time
import warnings
from importlib import metadata
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from cpu_engine import build, exported, make_engine, merged_by_peft, reference_steps, train_step

from support import (
    assert_same_tensors,
    cpu_fixups,
    enable_stubs,
    init_single_process,
    read_checkpoint,
    write_tiny_checkpoint,
)

LORA = {"type": "lora", "rank": 8, "alpha": 16, "dropout": 0.0, "merge": True, "adapter_path": None}
SEED = 7


def actor(path: Path, lora: dict[str, Any]) -> Any:
    """A built engine whose first export was checked against the checkpoint."""
    engine = build(make_engine(path, "language_model", lora))
    checkpoint = read_checkpoint(path)
    assert_same_tensors(exported(engine), checkpoint)
    say(f"{path.name}: export equals the checkpoint, {len(checkpoint)} tensors, bit for bit")
    return engine


def two_steps(engine: Any, saved: Path) -> list[dict[str, Any]]:
    """Train twice with an export after each step; save with verl's manager in between."""
    import torch

    torch.manual_seed(SEED)
    losses, states = [train_step(engine)], [exported(engine)]
    with contextlib.redirect_stdout(io.StringIO()):  # verl prints the whole transformer config
        engine.checkpoint_mananager.save_checkpoint(str(saved), global_step=1)
    losses.append(train_step(engine))
    states.append(exported(engine))
    say(f"two steps (loss {losses[0]:.3f}, {losses[1]:.3f}), an export after each, a checkpoint after the first")
    return states


def resume(path: Path, lora: dict[str, Any], saved: Path, states: list[dict[str, Any]]) -> None:
    """A new engine loads the checkpoint of step 1 and repeats step 2; its tokens come from the restored RNG."""
    import torch

    engine = actor(path, lora)
    torch.manual_seed(SEED + 1)
    engine.checkpoint_mananager.load_checkpoint(str(saved))
    assert_same_tensors(exported(engine), states[0])
    train_step(engine)
    assert_same_tensors(exported(engine), states[1])
    say(f"{path.name}: resumed after step 1: exports of steps 1 and 2 equal the uninterrupted run, bit for bit")


def lora_actor(folder: Path) -> None:
    """LoRA on a dense model; only adapters are trained, saved and resumed."""
    import torch

    path, saved = write_tiny_checkpoint(folder / "qwen3", "qwen3"), folder / "lora-step-1"
    engine = actor(path, LORA)
    names = dict(engine.module[0].module.named_parameters())
    trainable = {name for name, parameter in names.items() if parameter.requires_grad}
    assert trainable == {name for name in names if "adapter" in name}
    say(f"LoRA from verl's get_peft_cls: {type(engine.peft_cls).__name__}, {len(trainable)} trainable tensors")

    states = two_steps(engine, saved)
    checkpoint = read_checkpoint(path)
    changed = {name for name in checkpoint if not torch.equal(states[0][name], checkpoint[name])}
    assert changed
    assert all(name.endswith("_proj.weight") for name in changed), f"LoRA changed {sorted(changed)[:3]}"
    merged = merged_by_peft(path, saved / "model" / "huggingface" / "adapter", folder / "merged")
    assert_close(states[0], merged, checkpoint)
    say(f"merged export equals peft's merge of the saved adapter; {len(changed)} of {len(checkpoint)} tensors changed")
    resume(path, LORA, saved, states)


def moe_actor(folder: Path) -> None:
    """All weights of a MoE model are trained; transformers trains a second copy."""
    path, saved = write_tiny_checkpoint(folder / "qwen3_moe", "qwen3_moe"), folder / "moe-step-1"
    states = two_steps(actor(path, {}), saved)
    before = read_checkpoint(path)
    for state, expected in zip(states, reference_steps(path, 2, SEED, folder / "reference"), strict=True):
        assert_close(state, expected, before)
        before = expected
    say("both exports equal two steps of transformers' own model")
    resume(path, {}, saved, states)


def critic(folder: Path) -> None:
    """A value model whose MoE router verl was asked to freeze."""
    import torch
    from megatron.bridge.training.utils.train_utils import LinearForLastLayer

    path = folder / "qwen3_moe"
    checkpoint = read_checkpoint(path)
    engine = build(make_engine(path, "value_model", {}, freeze_router=True))
    model = engine.module[0].module
    assert type(model.output_layer) is LinearForLastLayer
    routers = {name: parameter for name, parameter in model.named_parameters() if ".router." in name}
    assert routers
    assert not any(parameter.requires_grad for parameter in routers.values()), "the router would be trained"
    say(f"value head of {model.output_layer.out_features}; {len(routers)} router tensors frozen")

    loss = train_step(engine)
    after = exported(engine)
    base = {name: tensor for name, tensor in checkpoint.items() if name != "lm_head.weight"}
    frozen = {name for name in base if name.endswith("mlp.gate.weight")}
    assert len(frozen) == len(routers)
    assert after["lm_head.weight"].shape == (1, checkpoint["lm_head.weight"].shape[1])
    assert all(torch.equal(after[name], base[name]) for name in frozen), "a frozen router changed"
    assert not all(torch.equal(after[name], base[name]) for name in base.keys() - frozen)
    say(f"one step (loss {loss:.3f}): the routers kept their weights, the rest was trained")


def assert_close(actual: dict[str, Any], expected: dict[str, Any], before: dict[str, Any]) -> None:
    """Same names and shapes, and the same *change* since ``before``: a step is small beside a weight."""
    import torch

    assert actual.keys() == expected.keys(), sorted(actual.keys() ^ expected.keys())[:5]
    for name, tensor in expected.items():
        change, wanted = actual[name] - before[name], tensor - before[name]
        size = wanted.norm().clamp(min=1e-5)
        error = float((change - wanted).norm() / size)
        assert error < 1e-2, f"{name}: the change is off by {error:.1e} of {float(size):.1e}"
        torch.testing.assert_close(actual[name], tensor, rtol=1e-4, atol=1e-6)


def print_applied() -> None:
    """What verl-compat did in this process; ``verl-compat explain ID`` says why."""
    import verl_compat

    status = verl_compat.status()
    done = [adapter for adapter in status.adapters if adapter.outcome in ("applied", "late", "untested")]
    say(f"verl-compat {verl_compat.__version__}: {len(done)} adapters applied in this process")
    for adapter in done:
        print(f"    {adapter.id}: {adapter.outcome}", flush=True)


def say(text: str) -> None:
    """One line of progress."""
    print(f"[weight_sync] {text}", flush=True)


def main() -> int:
    """Run all parts; 0 when all held."""
    began = time.monotonic()
    warnings.simplefilter("ignore")
    enable_stubs()
    import torch

    torch.manual_seed(0)
    versions = ", ".join(f"{dist} {metadata.version(dist)}" for dist in ("verl", "megatron-bridge", "megatron-core"))
    say(f"{versions}, CPU, gloo; VERL_COMPAT={os.environ.get('VERL_COMPAT', 'auto')}")
    init_single_process()
    cpu_fixups()
    try:
        with tempfile.TemporaryDirectory() as folder:
            lora_actor(Path(folder))
            moe_actor(Path(folder))
            critic(Path(folder))
    except ImportError as error:
        if not (error.name or "").startswith("megatron.bridge."):
            raise
        say(f"stopped by verl's ImportError: {error}")
        return 1
    print_applied()
    say(f"all held, {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
