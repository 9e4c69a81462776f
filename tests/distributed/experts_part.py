"""Single experts (SequentialMLP) and quantizer buffers under expert parallelism."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist

from support import (
    assert_same_tensors,
    build_model,
    build_provider,
    export_state,
    read_checkpoint,
    write_tiny_checkpoint,
)

RANK = dist.get_rank()
EXPERTS = 12  # six a rank: names of two digits, in both orders


class Quantizer(torch.nn.Module):
    """What a ModelOpt TensorQuantizer adds to a module: a persistent buffer."""

    def __init__(self, amax: float) -> None:
        super().__init__()
        self.register_buffer("_amax", torch.tensor(amax))


def quantise(chunk: torch.nn.Module) -> int:
    """Give each linear layer of the experts and of attention the submodules that ModelOpt gives it."""
    linears = [module for name, module in chunk.named_modules() if name.endswith(("linear_fc1", "linear_proj"))]
    for module in linears:
        module.weight_quantizer = Quantizer(1.0 + RANK)
        module.input_quantizer = Quantizer(2.0)
    return len(linears)


def compare(state: dict, expected: dict) -> str:
    try:
        assert_same_tensors(state, expected)
    except AssertionError as error:
        return str(error)
    return "same"


def outcome(action, *args):
    try:
        return action(*args)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def run(folder: Path) -> dict[str, object]:
    from megatron.bridge.models.conversion import model_bridge

    path = folder / "checkpoint"
    if RANK == 0:
        write_tiny_checkpoint(path, "qwen3_moe", num_experts=EXPERTS, num_hidden_layers=2)
    dist.barrier()
    bridge, provider = build_provider(path, expert_model_parallel_size=2, expert_tensor_parallel_size=1)
    model = build_model(provider)
    bridge.load_hf_weights(model)
    expected = read_checkpoint(path)
    local = sum(value.numel() for name, value in model[0].named_parameters() if "local_experts" in name)
    result: dict[str, object] = {
        "local experts": local,
        "plain": outcome(lambda: compare(export_state(bridge, model), expected)),
    }
    names = [
        "decoder.layers.1.mlp.experts.local_experts.3.linear_fc1.weight",
        "decoder.layers.1.mlp.experts.local_experts.3.linear_fc1.weight_quantizer._amax",
        "decoder.layers.1.mlp.experts.linear_fc1.weight3",
        "decoder.layers.1.mlp.experts.linear_fc2.bias5",
        "decoder.layers.1.mlp.experts.linear_fc1.weight_quantizer._amax",
        "decoder.layers.1.mlp.experts.linear_fc1.weight3._amax",
        "decoder.layers.1.mlp.experts.linear_fc1.adapter.linear_in.weight",
        "decoder.layers.1.mlp.shared_experts.linear_fc1.weight",
        "decoder.layers.1.mlp.router.expert_bias",
        "mtp.layers.0.transformer_layer.mlp.experts.local_experts.0.linear_fc2.weight",
        "decoder.layers.1.self_attention.linear_qkv.layer_norm_weight",
    ]
    config = model[0].config
    to_global = model_bridge._megatron_local_name_to_global
    result["names"] = {name: outcome(lambda n=name: to_global(model, config, n, 0)) for name in names}
    result["quantised layers"] = quantise(model[0])
    result["quantised"] = outcome(lambda: compare(export_state(bridge, model), expected))
    tasks = outcome(lambda: bridge.get_conversion_tasks(model))
    result["tasks"] = tasks if isinstance(tasks, str) else [task and task.global_param_name for task in tasks]
    return result
