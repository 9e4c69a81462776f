"""verl's Megatron engine on a CPU, for ``weight_sync.py``: build, train, export, save and load a tiny model."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from support.tiny import CPU_OVERRIDES, VOCAB_SIZE, read_checkpoint

LEARNING_RATE, MOMENTUM = 0.1, 0.9
BATCH, LENGTH = 2, 16


class ModelConfig(SimpleNamespace):
    """The fields of verl's HFModelConfig that its engine reads (the real one wants a tokenizer)."""

    def get(self, name: str, default: Any = None) -> Any:
        """A field, or the default."""
        return getattr(self, name, default)

    def get_processor(self) -> None:
        """No tokenizer, so none is saved with a checkpoint."""


def make_engine(path: Path, model_type: str, lora: dict[str, Any], freeze_router: bool = False) -> Any:
    """verl's MegatronEngine for one checkpoint, in fp32 and with what a CPU needs; the model is not built.

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
    optimizer_config = McoreOptimizerConfig(optimizer="sgd", lr=LEARNING_RATE, total_training_steps=2)
    return MegatronEngine(model_config, engine_config, optimizer_config, CheckpointConfig())


def build(engine: Any) -> Any:
    """``MegatronEngine.initialize`` as verl has it, but for what a CPU has not; returns the engine.

    Core's optimizer allocates on CUDA, so torch's SGD stands in; nothing is moved between devices; and core's
    tracker of CUDA random states gets one state to save (verl refuses a checkpoint that has none).
    """
    import torch
    from megatron.core import tensor_parallel

    tensor_parallel.get_cuda_rng_tracker().set_states({"model-parallel-rng": torch.get_rng_state()})
    engine._build_optimizer = lambda: make_optimizer(engine.module)
    engine._build_lr_scheduler = lambda: None
    engine.to = lambda *args, **kwargs: None
    engine.initialize()
    return engine


def make_optimizer(module: list[Any]) -> Any:
    """torch's SGD with momentum over what is trainable, with the one method that verl's checkpoint manager asks for."""
    import torch
    from megatron.core.dist_checkpointing.mapping import ShardedObject

    class Optimizer(torch.optim.SGD):
        def sharded_state_dict(self, *args: Any, **kwargs: Any) -> Any:
            return {"sgd": ShardedObject("sgd", self.state_dict(), (1,), (0,))}

        def load_state_dict(self, state: Any) -> None:
            super().load_state_dict(state["sgd"])

    trainable = [parameter for chunk in module for parameter in chunk.parameters() if parameter.requires_grad]
    return Optimizer(trainable, lr=LEARNING_RATE, momentum=MOMENTUM)


def exported(engine: Any, **kwargs: Any) -> dict[str, Any]:
    """The tensors that verl sends to the rollout, by Hugging Face name."""
    weights, _ = engine.get_per_tensor_param(**kwargs)
    return {name: tensor.detach().clone() for name, tensor in weights}


def train_step(engine: Any) -> float:
    """One forward, backward and optimizer step on random tokens of torch's generator; returns the loss."""
    import torch

    for chunk in engine.module:
        chunk.zero_grad_buffer()
    tokens = torch.randint(0, VOCAB_SIZE, (BATCH, LENGTH))
    positions = torch.arange(LENGTH).expand(BATCH, LENGTH)
    causal = torch.triu(torch.ones(LENGTH, LENGTH, dtype=torch.bool), diagonal=1)[None, None]
    output = engine.module[0](input_ids=tokens, position_ids=positions, attention_mask=causal)
    loss = output.float().pow(2).mean() if engine.is_value_model else next_token_loss(output, tokens)
    loss.backward()
    for chunk in engine.module:
        chunk.finish_grad_sync()
    for group in engine.optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = parameter.main_grad.to(parameter.dtype)  # megatron's DDP keeps gradients there
    engine.optimizer.step()
    engine.optimizer.zero_grad()  # these are main_grad itself, which the next backward would count twice
    return float(loss.detach())


def next_token_loss(logits: Any, tokens: Any) -> Any:
    """Mean cross entropy; logits [batch, sequence, vocabulary], tokens [batch, sequence]."""
    import torch

    return torch.nn.functional.cross_entropy(logits[:, :-1].reshape(-1, VOCAB_SIZE), tokens[:, 1:].reshape(-1))


def reference_steps(path: Path, steps: int, seed: int, scratch: Path) -> list[dict[str, Any]]:
    """The checkpoint after each of ``steps``, trained by transformers alone: no Megatron, Bridge or verl.

    Args:
        path: folder of a Hugging Face checkpoint.
        steps: how many.
        seed: of torch's generator before the first step's tokens are drawn.
        scratch: folder to write the trained checkpoints to.

    Returns:
        One dict per step, Hugging Face names to fp32 tensors.
    """
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
    torch.manual_seed(seed)
    states = []
    for step in range(steps):
        optimizer.zero_grad()
        tokens = torch.randint(0, VOCAB_SIZE, (BATCH, LENGTH))
        next_token_loss(model(input_ids=tokens).logits, tokens).backward()
        optimizer.step()
        model.save_pretrained(scratch / str(step))
        states.append(read_checkpoint(scratch / str(step)))
    return states


def merged_by_peft(path: Path, adapter: Path, scratch: Path) -> dict[str, Any]:
    """The checkpoint with an adapter folder merged into it by the ``peft`` package, through ``scratch``."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    PeftModel.from_pretrained(base, adapter).merge_and_unload().save_pretrained(scratch)
    return read_checkpoint(scratch)
