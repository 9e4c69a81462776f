"""Two ranks: Megatron-FSDP checkpoints, expert parallelism, adapter checkpoints.

Usage under torchrun: ``config_worker.py FOLDER PART...``.  One process does all parts, because
importing Bridge costs more than any of them; each part's outcome goes to ``FOLDER/PART_RANK.json``.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from pathlib import Path

PARALLEL = {
    "fsdp_part": {},
    "experts_part": {"expert_model_parallel_size": 2, "expert_tensor_parallel_size": 1},
    "adapter_part": {"pipeline_model_parallel_size": 2},
}


def main(folder: Path, parts: list[str]) -> None:
    import torch.distributed as dist

    from support import cpu_fixups, enable_stubs

    enable_stubs()
    dist.init_process_group("gloo")

    import verl_compat

    verl_compat.activate()
    from megatron.core import parallel_state

    for part in parts:
        parallel_state.initialize_model_parallel(**PARALLEL[part])
        cpu_fixups()
        (folder / part).mkdir(exist_ok=True)
        dist.barrier()
        try:
            result = importlib.import_module(part).run(folder / part)
        except Exception:
            result = {"traceback": traceback.format_exc()}
        (folder / f"{part}_{dist.get_rank()}.json").write_text(json.dumps(result))
        if "traceback" in result:
            print(result["traceback"], flush=True)
            os._exit(1)  # the other rank may wait in a collective; torchrun ends it
        dist.barrier()
        parallel_state.destroy_model_parallel()


if __name__ == "__main__":  # megatron-core's checkpoint writer starts processes that import this file
    main(Path(sys.argv[1]), sys.argv[2:])
    os._exit(0)  # tearing gloo down is no part of the test
