"""One process: verl builds, loads and saves a model whose checkpoint has MTP tensors, with mtp.enable=False.

    python mtp_save.py SOURCE OUT

Prints one line of JSON: verl's version, the provider's number of MTP layers, exported names, names per file, index.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from support import cpu_fixups, enable_stubs, init_single_process, shutdown

enable_stubs()


class Settings(SimpleNamespace):
    """Configuration with ``get``, as verl's own have."""

    def get(self, name: str, default: Any = None) -> Any:
        return getattr(self, name, default)


def engine(source: Path, hf_config: Any) -> Any:
    """verl's engine, as far as it makes the provider."""
    from verl.workers.engine.megatron.transformer_impl import MegatronEngine

    made = MegatronEngine.__new__(MegatronEngine)
    made.engine_config = Settings(
        tensor_model_parallel_size=1,
        pipeline_model_parallel_size=1,
        expert_model_parallel_size=1,
        expert_tensor_parallel_size=1,
        virtual_pipeline_model_parallel_size=None,
        context_parallel_size=1,
        sequence_parallel=False,
        override_transformer_config={"attention_backend": "auto"},
        dtype="float32",
        dynamic_context_parallel=False,
        vanilla_mbridge=False,
        max_seqlen_per_dp_cp_rank=None,
        router_replay=Settings(mode="disabled"),
        forward_only=False,
    )
    made.model_config = Settings(
        local_path=str(source),
        trust_remote_code=False,
        mtp=Settings(enable=False),
        hf_config=hf_config,
        lora={},
        share_embeddings_and_output_weights=False,
        model_type="language_model",
    )
    made._qat_enabled, made._qat_config, made.enable_routing_replay, made.rank = False, None, False, 0
    made._build_tf_config()
    return made


def main(source: Path, out: Path) -> None:
    """Build, load, save, tell."""
    init_single_process()
    cpu_fixups()
    import torch
    import transformers
    import verl
    from safetensors import safe_open

    from support.tiny import build_model, configure_for_cpu

    torch.cuda.current_device = lambda: torch.device("cpu")  # verl asks for it while it builds the provider
    hf_config = transformers.AutoConfig.from_pretrained(source)
    made = engine(source, hf_config)
    mtp = made.provider.mtp_num_layers
    model = build_model(configure_for_cpu(made.provider, mtp_num_layers=mtp))
    made.bridge.load_hf_weights(model)
    exported = [name for name, _ in made.bridge.export_hf_weights(model, cpu=True, show_progress=False)]
    out.mkdir(parents=True)
    if verl.__version__.startswith("0.9"):
        hf_config.save_pretrained(out)  # verl 0.9 writes the configuration first, 0.7 and 0.8 last
    made.bridge.save_hf_weights(model, out, show_progress=False, strict=True)
    files: dict[str, list[str]] = {}
    for file in sorted(out.glob("*.safetensors")):
        with safe_open(file, "pt") as opened:
            files[file.name] = sorted(opened.keys())
    index = json.loads((out / "model.safetensors.index.json").read_text())["weight_map"]
    print(json.dumps({"verl": verl.__version__, "mtp": mtp, "exported": exported, "files": files, "index": index}))
    shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
