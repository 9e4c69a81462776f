"""Adapter checkpoints in verl 0.7's format and in that of 0.8, converted both ways on two pipeline ranks."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist

from support import build_model, build_provider, write_tiny_checkpoint
from verl_compat.shims.adapter_convert import convert_adapter_checkpoint, rank_file
from verl_compat.shims.adapter_formats import adapter_format

RANK = dist.get_rank()


def adapters(model: list) -> dict[str, torch.Tensor]:
    return {name: p for name, p in model[0].named_parameters() if ".adapter." in name}


def fill(model: list, value: float) -> None:
    with torch.no_grad():
        for number, parameter in enumerate(adapters(model).values()):
            parameter.fill_(value + number + 100 * RANK)


def snapshot(model: list) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in adapters(model).items()}


def same(left: dict, right: dict) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def failure(*args) -> str:
    try:
        return convert_adapter_checkpoint(*args)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def run(folder: Path) -> dict[str, object]:
    from megatron.bridge.peft.utils import create_peft, create_peft_hook, load_peft_adapter_checkpoint

    if RANK == 0:
        write_tiny_checkpoint(folder / "base", "qwen3")
    dist.barrier()
    peft = create_peft({"type": "lora", "rank": 4, "target_modules": ["linear_proj", "linear_fc2"]})
    _, provider = build_provider(folder / "base", pipeline_model_parallel_size=2, pipeline_dtype=torch.float32)
    model = build_model(provider, hooks=[create_peft_hook(peft)])
    old, new, back = (str(folder / name) for name in ("old", "new", "back"))

    fill(model, 1)
    saved = snapshot(model)
    Path(old).mkdir(exist_ok=True)
    torch.save({"adapter_state_dict": saved}, rank_file(old))  # as verl 0.7 does
    dist.barrier()
    fill(model, 50)
    result: dict[str, object] = {"adapters": len(saved), "to": convert_adapter_checkpoint(model, old, new)}
    result["loaded from old"] = same(snapshot(model), saved)
    result["new format"] = adapter_format(new)
    fill(model, 60)
    load_peft_adapter_checkpoint(model, new, peft=peft, strict=False)  # what verl >= 0.8 calls
    result["Bridge loads it"] = same(snapshot(model), saved)
    fill(model, 70)
    result["back to"] = convert_adapter_checkpoint(model, new, back)
    result["loaded from new"] = same(snapshot(model), saved)
    result["same file"] = same(torch.load(rank_file(back), weights_only=True)["adapter_state_dict"], saved)
    result["files"] = sorted(file.name for file in Path(back).iterdir())
    result["not empty"] = failure(model, old, new)
    result["unknown"] = failure(model, str(folder / "base"), str(folder / "x"))
    result["chunks"] = failure([model[0], model[0]], old, str(folder / "x"))
    if RANK == 1:
        torch.save({"adapter_state_dict": {}}, rank_file(old))
    dist.barrier()
    result["one rank differs"] = failure(model, old, str(folder / "y"))
    return result
