"""One process: two asynchronous saves by verl's Megatron checkpoint manager, ended as a training script ends.

    python async_save.py OUT [drain]

With ``drain`` this process is drained as verl's PPO trainer does it: before each step, and blocking after the last.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

sys.path.insert(0, str(Path(__file__).parents[1]))

from support import enable_stubs, init_single_process, shutdown

enable_stubs()

TRACKER = "latest_checkpointed_iteration.txt"


def manager() -> Any:
    """verl's manager, through its own ``__init__``, told to save the random states ("extra")."""
    import torch
    from megatron.core import tensor_parallel
    from megatron.core.transformer import TransformerConfig
    from verl.trainer.config import CheckpointConfig
    from verl.utils.checkpoint.megatron_checkpoint_manager import MegatronCheckpointManager

    class Model(torch.nn.Module):
        def sharded_state_dict(self, **_: Any) -> dict[str, Any]:
            """Nothing: verl 0.7 asks for it whatever is saved."""
            return {}

    class Manager(MegatronCheckpointManager):
        def generate_state_dict(self, *args: Any, **kwargs: Any) -> Any:
            """With the key that verl 0.7 and 0.8 log, saved or not."""
            return {"model": {}} | super().generate_state_dict(*args, **kwargs)

    tensor_parallel.get_cuda_rng_tracker().set_states({"model-parallel-rng": torch.get_rng_state()})
    values = {
        "model": [Model()],
        "config": SimpleNamespace(model=SimpleNamespace(path="nowhere")),
        "role": "actor",
        "transformer_config": TransformerConfig(num_layers=1, hidden_size=8, num_attention_heads=1),
        "checkpoint_config": CheckpointConfig(save_contents=["extra"], async_save=True),
        "bridge": SimpleNamespace(),
        "provider": SimpleNamespace(),
        "param_dtype": torch.float32,
    }
    for name, parameter in inspect.signature(MegatronCheckpointManager.__init__).parameters.items():
        if parameter.default is parameter.empty and parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
            values.setdefault(name, None)
    del values["self"]
    made = Manager(**values)
    assert made.should_save_extra
    assert not made.should_save_model
    return made


def drain(blocking: bool) -> None:
    """What the trainer dispatches to the actor's workers."""
    for server in ("uvicorn", "fastapi"):  # the rollout's HTTP server, imported on the way and not used
        try:
            importlib.import_module(server)
        except ImportError:
            sys.modules[server] = MagicMock()
    try:
        from verl.workers.megatron_workers import ActorRolloutRefWorker
    except ImportError:
        from verl.workers.engine_workers import ActorRolloutRefWorker
    worker = object.__new__(ActorRolloutRefWorker)
    worker.async_calls_finalize_fn_exec(blocking=blocking)


def main(out: Path, drained: bool) -> None:
    """Save after two steps; tells what was whole when ``save_checkpoint`` returned."""
    init_single_process()
    import torch

    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.cuda.synchronize = lambda *_: None  # core waits for the device before it starts the writer
    torch.cuda.get_rng_state = torch.get_rng_state  # verl 0.9.0 asks for the device's state without looking for one
    made = manager()
    for step in (1, 2):
        if drained:
            drain(blocking=False)
        made.save_checkpoint(str(out / f"global_step_{step}" / "actor"), global_step=step)
        tracker = out / TRACKER
        print("RETURNED", step, tracker.read_text() if tracker.exists() else "nothing")
    if drained:
        drain(blocking=True)
    shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]), "drain" in sys.argv[2:])
