"""The main job on a CPU: verl's own Megatron engine trains and syncs a tiny model on an older Bridge.

Needs verl 0.9.1, megatron-bridge 0.4.2 and megatron-core 0.17.1 (``tox run -e demo`` installs them); no GPU.
Without verl-compat (``VERL_COMPAT=off``) it stops at verl's ImportError, with exit status 1.

Part 1, an actor: write a Hugging Face checkpoint (Qwen3, random weights), load it through AutoBridge,
configure the provider, add LoRA and build the model, all by verl's engine; check the export against the
checkpoint bit for bit; one forward, backward and optimizer step; export again.
Part 2, a critic: a Qwen3-MoE value model with ``freeze_moe_router``.
"""

from __future__ import annotations

import os

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import sys
import tempfile
import warnings
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from support import (
    assert_same_tensors,
    cpu_fixups,
    enable_stubs,
    init_single_process,
    read_checkpoint,
    write_tiny_checkpoint,
)
from support.tiny import CPU_OVERRIDES, VOCAB_SIZE

LORA = {"type": "lora", "rank": 8, "alpha": 16, "dropout": 0.0, "merge": True, "adapter_path": None}


class ModelConfig(SimpleNamespace):
    """The fields of verl's HFModelConfig that its engine reads (the real one wants a tokenizer)."""

    def get(self, name: str, default: Any = None) -> Any:
        """A field, or the default."""
        return getattr(self, name, default)


def make_engine(path: Path, model_type: str, lora: dict[str, Any], freeze_router: bool = False) -> Any:
    """verl's MegatronEngine for one checkpoint, in fp32 and with what a CPU needs.

    Args:
        path: folder of a Hugging Face checkpoint.
        model_type: ``language_model`` or ``value_model``.
        lora: verl's ``model.lora``.
        freeze_router: verl's ``override_mcore_model_config.moe_config.freeze_moe_router``.
    """
    import torch
    from transformers import AutoConfig
    from verl.trainer.config import CheckpointConfig
    from verl.workers.config import McoreEngineConfig, McoreOptimizerConfig
    from verl.workers.engine.megatron.transformer_impl import MegatronEngine

    hf_config = AutoConfig.from_pretrained(path)
    model_config = ModelConfig(
        model_type=model_type,
        local_path=str(path),
        hf_config=hf_config,
        trust_remote_code=False,
        share_embeddings_and_output_weights=False,
        lora=lora,
        lora_rank=0,
        mtp=SimpleNamespace(enable=False),
        architectures=hf_config.architectures,
    )
    engine_config = McoreEngineConfig(
        tensor_model_parallel_size=1,
        override_transformer_config={
            **CPU_OVERRIDES,
            "attention_backend": "unfused",
            "variable_seq_lengths": False,  # not with the dispatcher that a CPU needs
            "autocast_dtype": torch.float32,
        },
        override_mcore_model_config={"moe_config": {"freeze_moe_router": freeze_router}},
    )
    # verl's dataclass takes bfloat16 and float16 only; exact comparisons want fp32.
    object.__setattr__(engine_config, "dtype", "float32")
    optimizer_config = McoreOptimizerConfig(optimizer="adam", lr=1e-2, total_training_steps=1)
    return MegatronEngine(model_config, engine_config, optimizer_config, CheckpointConfig())


def build(engine: Any) -> None:
    """What MegatronEngine.initialize does first; its optimizer allocates on CUDA, so torch's Adam stands in."""
    import torch

    engine._build_tf_config()
    engine.module = engine._build_megatron_module()
    trainable = [parameter for chunk in engine.module for parameter in chunk.parameters() if parameter.requires_grad]
    engine.optimizer = torch.optim.Adam(trainable, lr=1e-2)


def exported(engine: Any) -> dict[str, Any]:
    """The tensors that verl sends to the rollout, by Hugging Face name."""
    weights, _ = engine.get_per_tensor_param()
    return {name: tensor.detach().clone() for name, tensor in weights}


def train_step(engine: Any) -> float:
    """One forward, backward and optimizer step on random tokens; returns the loss."""
    import torch

    for chunk in engine.module:
        chunk.zero_grad_buffer()
    tokens = torch.randint(0, VOCAB_SIZE, (2, 16))
    positions = torch.arange(16).expand(2, 16)
    causal = torch.triu(torch.ones(16, 16, dtype=torch.bool), diagonal=1)[None, None]
    output = engine.module[0](input_ids=tokens, position_ids=positions, attention_mask=causal)
    if engine.is_value_model:
        loss = output.float().pow(2).mean()
    else:
        loss = torch.nn.functional.cross_entropy(output[:, :-1].reshape(-1, VOCAB_SIZE), tokens[:, 1:].reshape(-1))
    loss.backward()
    for chunk in engine.module:
        chunk.finish_grad_sync()
    for group in engine.optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = parameter.main_grad.to(parameter.dtype)  # megatron's DDP keeps gradients there
    engine.optimizer.step()
    return float(loss)


def actor(folder: Path) -> None:
    """Part 1: LoRA on a dense model, through load, export, training step and export."""
    import torch

    path = write_tiny_checkpoint(folder / "qwen3", "qwen3")
    checkpoint = read_checkpoint(path)
    engine = make_engine(path, "language_model", LORA)
    build(engine)
    names = dict(engine.module[0].module.named_parameters())
    trainable = {name for name, parameter in names.items() if parameter.requires_grad}
    assert trainable == {name for name in names if "adapter" in name}
    say(f"LoRA from verl's get_peft_cls: {type(engine.peft_cls).__name__}, {len(trainable)} trainable tensors")

    assert_same_tensors(exported(engine), checkpoint)
    say(f"export equals the checkpoint: {len(checkpoint)} tensors, bit for bit")

    loss = train_step(engine)
    after = exported(engine)
    changed = {name for name in checkpoint if not torch.equal(after[name], checkpoint[name])}
    assert after.keys() == checkpoint.keys()
    assert changed, "a training step changed nothing"
    assert all("proj" in name for name in changed), f"LoRA changed {sorted(changed)[:3]}"
    say(f"one step (loss {loss:.3f}): {len(changed)} tensors changed by merged LoRA, the others bit for bit equal")


def critic(folder: Path) -> None:
    """Part 2: a value model whose MoE router verl was asked to freeze."""
    import torch
    from megatron.bridge.training.utils.train_utils import LinearForLastLayer

    path = write_tiny_checkpoint(folder / "qwen3_moe", "qwen3_moe")
    checkpoint = read_checkpoint(path)
    engine = make_engine(path, "value_model", {}, freeze_router=True)
    build(engine)
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
    """Run both parts; 0 when all held."""
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
            actor(Path(folder))
            critic(Path(folder))
    except ImportError as error:
        if not (error.name or "").startswith("megatron.bridge."):
            raise
        say(f"stopped by verl's ImportError: {error}")
        return 1
    print_applied()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
