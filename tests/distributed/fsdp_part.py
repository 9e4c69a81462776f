"""Two ranks save and load Megatron-FSDP (DTensor) checkpoints; a part of config_worker.py.

The state dict is what Megatron-FSDP hands over: DTensors of uneven shards.  The wrapper itself
needs a GPU; Bridge's preprocessing, megatron-core's uneven-DTensor code and torch's
distributed checkpoint are the real ones.
"""

from __future__ import annotations

import resource
import signal
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
from megatron.bridge.training import checkpointing
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

RANK = dist.get_rank()
MESH = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
ROWS = (5, 3)  # uneven, as Megatron-FSDP shards


def full(seed: int) -> torch.Tensor:
    return torch.arange(sum(ROWS) * 4, dtype=torch.float32).reshape(-1, 4) + 1000 * seed


def sharded(tensor: torch.Tensor) -> DTensor:
    local = tensor.split(list(ROWS))[RANK].clone()
    return DTensor.from_local(local, MESH, [Shard(0)], shape=tensor.shape, stride=tensor.stride(), run_check=False)


class Chunk(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(gated_linear_unit=False, activation_func=None, num_moe_experts=None)


def state(seed: int) -> dict[str, object]:
    return {
        "model": {"decoder.weight": sharded(full(seed)), "decoder._extra_state": None},
        "optimizer": {"state": {"decoder.weight": {"exp_avg": sharded(full(seed + 1))}}},
        "rng_state": {"(0, 0)": [{"seed": seed}]},
    }


def save(path: Path, seed: int, **kwargs: object) -> object:
    return checkpointing.save_fsdp_dtensor_checkpoint(path, state(seed), cfg=None, model=Chunk(), **kwargs)


def load(path: Path, **changes: object) -> dict[str, object]:
    template = {**state(90), "_model": [Chunk()], **changes}
    template = {name: value for name, value in template.items() if value is not None}
    done = checkpointing.load_fsdp_dtensor_checkpoint(
        load_dir=str(path), ckpt_cfg=SimpleNamespace(), rank0=False, sharded_state_dict=template,
        iteration=None, release=False, checkpoint_path_override=str(path), cfg=None,
    )  # fmt: skip
    assert done[1:3] == (str(path), False)
    return done[0]


def is_seed(loaded: dict, seed: int) -> bool:
    local = loaded["model"]["decoder.weight"].to_local()
    momentum = loaded["optimizer"]["state"]["decoder.weight"]["exp_avg"].to_local()
    return bool(
        torch.equal(local, full(seed).split(list(ROWS))[RANK])
        and torch.equal(momentum, full(seed + 1).split(list(ROWS))[RANK])
        and loaded["rng_state"] == {"(0, 0)": [{"seed": seed}]}
    )


def failure(action, *args, **kwargs) -> str:
    try:
        action(*args, **kwargs)
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def no_space(path: Path) -> str:
    """The last rank cannot write: what its file system says is not ENOSPC, but comes the same way."""
    if RANK == 1:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (64, hard))
    try:
        return failure(save, path, 3)
    finally:
        if RANK == 1:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def round_trip(folder: Path) -> dict[str, object]:
    path = folder / "step_1" / "dist_ckpt"
    result: dict[str, object] = {}
    raw = state(1)
    before = {name: set(value) for name, value in raw.items()}
    checkpointing.save_fsdp_dtensor_checkpoint(path, raw, cfg=None, model=Chunk())
    result["mutated by saving"] = {name: sorted(set(value) ^ before[name]) for name, value in raw.items()}
    result["files"] = sorted(name.name for name in path.iterdir())
    result["first"] = is_seed(load(path), 1) if CAN_LOAD else None
    if RANK == 0:
        (path / "notes.txt").write_text("mine")
        (path / "__9_0.distcp").write_text("left over from more ranks")
    dist.barrier()
    save(path, 2)
    result["files again"] = sorted(name.name for name in path.iterdir())
    result["second"] = is_seed(load(path), 2) if CAN_LOAD else None
    result["full disk"] = no_space(path) if not NATIVE else None
    dist.barrier()  # rank 0 cleans up while the others are told
    result["files after failure"] = sorted(name.name for name in path.iterdir())
    result["beside"] = sorted(name.name for name in path.parent.iterdir())
    result["still second"] = is_seed(load(path), 2) if CAN_LOAD else None
    return result


def errors(folder: Path) -> dict[str, object]:
    path = folder / "step_1" / "dist_ckpt"
    (folder / "empty").mkdir(exist_ok=True)
    own = folder / f"only_rank_{RANK}"
    own.mkdir()
    (folder / "only_rank_1" / ".metadata").touch() if RANK == 1 else None
    dist.barrier()
    unreadable = folder / "only_rank_1" if RANK == 1 else folder / "only_rank_none"
    result = {
        "no directory": failure(load, folder / "absent"),
        "empty directory": failure(load, folder / "empty"),
        "one rank only": failure(load, unreadable),
        "no _model": failure(load, path, _model=None),
        "no template": failure(
            checkpointing.load_fsdp_dtensor_checkpoint, str(path), SimpleNamespace(), False, None, None,
            checkpoint_path_override=str(path),
        ),
        "no model to save": failure(
            checkpointing.save_fsdp_dtensor_checkpoint, path, {"optimizer": {}}, cfg=None, model=Chunk()
        ),
        "rank0": failure(
            checkpointing.load_fsdp_dtensor_checkpoint, str(path), None, True, None, 7, False, str(path)
        ),
    }  # fmt: skip
    have, checkpointing.HAVE_MEGATRON_FSDP = checkpointing.HAVE_MEGATRON_FSDP, False
    result["no Megatron-FSDP: load"] = failure(load, path)
    result["no Megatron-FSDP: save"] = failure(save, path, 5)
    checkpointing.HAVE_MEGATRON_FSDP = have
    return result


NATIVE = checkpointing.load_fsdp_dtensor_checkpoint.__module__ == checkpointing.__name__
CAN_LOAD = NATIVE or "checkpoint_path_override" in (
    checkpointing._load_fsdp_dtensor_base_checkpoint.__code__.co_varnames
)


def run(folder: Path) -> dict[str, object]:
    out = {"native": NATIVE, "can load": CAN_LOAD, **round_trip(folder)}
    return out if NATIVE else {**out, **errors(folder)}
