"""A real vLLM's NVFP4 layers on a CPU: real classes, real weights creation, real conversion.

Stand-ins only for what needs a GPU: the repacking kernel (:mod:`cpu_marlin`), the number
of multiprocessors, and a platform that says it is a Hopper GPU.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from types import SimpleNamespace
from typing import Any

import cpu_marlin
import torch

QUANT = "vllm.model_executor.layers.quantization"
HOPPER, BLACKWELL = 90, 100


def cpu_kernels() -> None:
    """Give vLLM's Marlin conversion a CPU kernel (``gptq_marlin_repack``, of any signature)."""
    import vllm._custom_ops as ops

    real = inspect.signature(ops.gptq_marlin_repack)

    def gptq_marlin_repack(b_q_weight: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        arguments = real.bind(b_q_weight, *args, **kwargs).arguments
        return cpu_marlin.repack(b_q_weight, arguments["size_k"], arguments["size_n"])

    ops.gptq_marlin_repack = gptq_marlin_repack
    ops.cutlass_scaled_mm_supports_fp4 = lambda capability: capability >= BLACKWELL
    torch.cuda.get_device_properties = lambda *_: SimpleNamespace(multi_processor_count=4)


def named(module: str, name: str) -> Any:
    """An object of a vLLM module, None where the release has no such module or object."""
    try:
        return getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError:
        return None


# --- weights as a checkpoint has them ----------------------------------------


@dataclasses.dataclass
class Checkpoint:
    """Random NVFP4 weights of one GEMM: ``(n, k)``, or ``(experts, n, k)``."""

    packed: torch.Tensor
    scales: torch.Tensor
    global_scale: torch.Tensor  # multiplier, one per expert
    input_scale: torch.Tensor
    bias: torch.Tensor | None = None

    @classmethod
    def random(cls, n: int, k: int, experts: int = 0, seed: int = 0, bias: bool = False) -> Checkpoint:
        generator = torch.Generator().manual_seed(seed)
        shape = (experts, n, k) if experts else (n, k)
        lead, rows = shape[:-1], (shape[0],) if experts else (1,)
        packed = torch.randint(0, 256, (*lead, k // 2), generator=generator, dtype=torch.uint8)
        spread = torch.rand((*lead, k // 16), generator=generator) * 12.0 - 3.0
        scales = spread.exp2().clamp(max=448.0).to(torch.float8_e4m3fn)
        level = (torch.rand(rows, generator=generator) * 6.0 - 10.0).exp2()
        return cls(
            packed,
            scales,
            level.to(torch.float32),
            torch.full(rows, 0.5),
            torch.randn(n, generator=generator).to(torch.bfloat16) if bias else None,
        )

    def real(self, expert: int | None = None) -> torch.Tensor:
        if expert is None:
            return cpu_marlin.checkpoint_weight(self.packed, self.scales, self.global_scale[0])
        return cpu_marlin.checkpoint_weight(self.packed[expert], self.scales[expert], self.global_scale[expert])


# --- dense layers ------------------------------------------------------------


class Layer(torch.nn.Module):
    """A linear layer as vLLM's methods see one."""

    def __init__(self, n: int, k: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.n, self.k = n, k
        self.params_dtype = dtype
        self.prefix = "model.layers.0.self_attn.qkv_proj"
        self.orig_dtype = dtype


def load(parameter: torch.nn.Parameter, value: torch.Tensor, *_: Any, **__: Any) -> None:
    """Weight loader of the layers here: a plain copy."""
    parameter.data.copy_(value.reshape(parameter.shape) if value.numel() == parameter.numel() else value)


def modelopt_config() -> Any:
    """A real ModelOptNvFp4Config."""
    cls = named(f"{QUANT}.modelopt", "ModelOptNvFp4Config")
    wanted = {
        "quant_method": "NVFP4",
        "is_checkpoint_nvfp4_serialized": True,
        "kv_cache_quant_algo": None,
        "kv_cache_quant_method": None,
        "exclude_modules": [],
        "group_size": 16,
    }
    names = inspect.signature(cls.__init__).parameters
    return cls(**{name: value for name, value in wanted.items() if name in names})


def modelopt_linear(n: int, k: int, dtype: torch.dtype, bias: bool) -> tuple[Any, Layer]:
    """A real ModelOpt NVFP4 linear method and a layer with its parameters."""
    config = modelopt_config()
    build = named(f"{QUANT}.modelopt", "build_linear_method")
    cls = named(f"{QUANT}.modelopt", "ModelOptNvFp4LinearMethod")
    method = cls(config) if cls is not None else build(config, "NVFP4", "layer")
    layer = Layer(n, k, dtype)
    if bias:
        add_bias(layer)
    method.create_weights(layer, k, [n], k, n, dtype, weight_loader=load)
    layer.quant_method = method
    return method, layer


def add_bias(layer: Layer) -> None:
    bias = torch.nn.Parameter(torch.zeros(layer.n, dtype=layer.params_dtype), requires_grad=False)
    bias.output_dim, bias.weight_loader = 0, load
    layer.register_parameter("bias", bias)


def compressed_linear(n: int, k: int, dtype: torch.dtype, bias: bool, w4a4: bool = False) -> tuple[Any, Layer]:
    """A real compressed-tensors NVFP4 scheme (W4A16 or W4A4) and a layer with its parameters."""
    schemes = f"{QUANT}.compressed_tensors.schemes"
    both = importlib.import_module(f"{schemes}.compressed_tensors_w4a4_nvfp4").CompressedTensorsW4A4Fp4
    older = named(f"{schemes}.compressed_tensors_w4a16_nvfp4", "CompressedTensorsW4A16Fp4") if w4a4 else None
    if w4a4 and "has_input_global_scale" in inspect.signature(older.__init__ if older else both.__init__).parameters:
        scheme = older(has_input_global_scale=True)  # what vLLM up to 0.15 makes of W4A4 on a Hopper GPU
    elif w4a4:
        scheme = both()
    elif "use_a16" in inspect.signature(both.__init__).parameters:
        scheme = both(use_a16=True)
    else:
        scheme = importlib.import_module(f"{schemes}.compressed_tensors_w4a16_nvfp4").CompressedTensorsW4A16Fp4()
    layer = Layer(n, k, dtype)
    if bias:
        add_bias(layer)
    scheme.create_weights(
        layer=layer,
        output_partition_sizes=[n],
        input_size_per_partition=k,
        params_dtype=dtype,
        weight_loader=load,
        input_size=k,
        output_size=n,
    )
    layer.scheme = scheme
    return scheme, layer


def send(layer: torch.nn.Module, name: str, value: torch.Tensor) -> None:
    """Deliver one tensor of a sync through the parameter's own weight loader."""
    parameter = dict(layer.named_parameters(recurse=False))[name]
    parameter.weight_loader(parameter, value.clone())


def send_dense(layer: Layer, data: Checkpoint, compressed: bool, with_input: bool = True) -> None:
    """All tensors of a dense layer, under the names of the format."""
    total = 1.0 / data.global_scale if compressed else data.global_scale
    inputs = 1.0 / data.input_scale if compressed else data.input_scale
    send(layer, "weight_packed" if compressed else "weight", data.packed)
    send(layer, "weight_scale", data.scales)
    send(layer, "weight_global_scale" if compressed else "weight_scale_2", total)
    name = "input_global_scale" if compressed else "input_scale"
    if with_input and name in dict(layer.named_parameters(recurse=False)):
        send(layer, name, inputs)
    if data.bias is not None:
        send(layer, "bias", data.bias)


def dense_on_marlin(layer: Layer) -> tuple[torch.Tensor, torch.Tensor | None]:
    """What Marlin computes with: real weight ``(n, k)`` without padding, and the bias in order."""
    total = getattr(layer, "weight_global_scale", None)
    total = layer.weight_scale_2 if total is None else total
    padded_k, padded_n = layer.weight.shape[0] * 16, layer.weight.shape[1] // 2
    real = cpu_marlin.marlin_weight(
        layer.weight.data, layer.weight_scale.data, total.data, padded_k, padded_n, layer.params_dtype
    )
    bias = getattr(layer, "bias", None)
    return real[: layer.n, : layer.k], None if bias is None else cpu_marlin.marlin_bias(bias.data)[: layer.n]


# --- MoE layers --------------------------------------------------------------


def moe_config(experts: int, hidden: int, intermediate: int, dtype: torch.dtype) -> Any:
    """A real FusedMoEConfig of one rank."""
    config = importlib.import_module("vllm.model_executor.layers.fused_moe.config")
    parallel = config.FusedMoEParallelConfig
    if hasattr(parallel, "make_no_parallel"):
        one = parallel.make_no_parallel()
    else:
        fields = {field.name: field for field in dataclasses.fields(parallel)}
        ones = {name: 1 if name.endswith("_size") else 0 for name in fields}
        one = parallel(**{**ones, "use_ep": False, "all2all_backend": "allgather_reducescatter"})
    activation = named("vllm.model_executor.layers.fused_moe.activation", "MoEActivation")
    wanted = {
        "num_experts": experts,
        "experts_per_token": 2,
        "hidden_dim": hidden,
        "intermediate_size": intermediate,
        "intermediate_size_per_partition": intermediate,
        "num_local_experts": experts,
        "num_logical_experts": experts,
        "activation": activation.SILU if activation is not None else "silu",
        "device": "cpu",
        "routing_method": next(iter(config.RoutingMethodType)) if hasattr(config, "RoutingMethodType") else None,
        "moe_parallel_config": one,
        "in_dtype": dtype,
        "max_num_tokens": 256,
    }
    accepted = inspect.signature(config.FusedMoEConfig).parameters
    return config.FusedMoEConfig(**{name: value for name, value in wanted.items() if name in accepted})


class Experts(torch.nn.Module):
    """An MoE layer as vLLM's methods see one."""

    def __init__(self, config: Any, experts: int, hidden: int, intermediate: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.moe_config = config
        self.num_experts = self.local_num_experts = self.global_num_experts = experts
        self.hidden_size, self.intermediate_size_per_partition = hidden, intermediate
        self.params_dtype = dtype
        self.layer_name = "model.layers.0.mlp.experts"
        self.shared_experts = None
        self.expert_map = None
        # Shared with the router in real models: nothing here may touch it.
        self.e_score_correction_bias = torch.nn.Parameter(torch.arange(experts, dtype=torch.float32))

    def _expert_routing_tables(self) -> None:
        return None

    _maybe_init_expert_routing_tables = _expert_routing_tables


def moe_layer(
    compressed: bool, experts: int, hidden: int, intermediate: int, dtype: torch.dtype
) -> tuple[Any, Experts]:
    """A real NVFP4 MoE method of one of the two formats, and a layer with its parameters."""
    config = moe_config(experts, hidden, intermediate, dtype)
    layer = Experts(config, experts, hidden, intermediate, dtype)
    if compressed:
        from verl_compat.shims.marlin_resolve import need

        cls: Any = need("CompressedTensorsW4A4Nvfp4MoEMethod")
        arguments: dict[str, Any] = {"moe": config, "layer_name": layer.layer_name, "use_a16": True}
    else:
        cls = named(f"{QUANT}.modelopt", "ModelOptNvFp4FusedMoE")
        arguments = {"quant_config": modelopt_config(), "moe_config": config, "layer": layer}
    accepted = inspect.signature(cls.__init__).parameters
    method = cls(**{name: value for name, value in arguments.items() if name in accepted})
    method.create_weights(
        layer,
        num_experts=experts,
        hidden_size=hidden,
        intermediate_size_per_partition=intermediate,
        params_dtype=dtype,
        weight_loader=load,
        global_num_experts=experts,
    )
    layer.quant_method = method
    return method, layer


def send_moe(layer: Experts, w13: Checkpoint, w2: Checkpoint, compressed: bool) -> None:
    """All tensors of an MoE layer, under the names of the format."""
    for gemm, data in (("w13", w13), ("w2", w2)):
        total = 1.0 / data.global_scale if compressed else data.global_scale
        inputs = 1.0 / data.input_scale if compressed else data.input_scale
        if gemm == "w13":
            total, inputs = total.unsqueeze(1).expand(-1, 2), inputs.unsqueeze(1).expand(-1, 2)
        send(layer, f"{gemm}_weight_packed" if compressed else f"{gemm}_weight", data.packed)
        send(layer, f"{gemm}_weight_scale", data.scales)
        send(layer, f"{gemm}_weight_global_scale" if compressed else f"{gemm}_weight_scale_2", total.contiguous())
        send(layer, f"{gemm}_input_global_scale" if compressed else f"{gemm}_input_scale", inputs.contiguous())


def moe_on_marlin(layer: Experts, gemm: str, n: int, k: int) -> list[torch.Tensor]:
    """Real weights ``(n, k)`` of each expert, as Marlin computes with them, padding cut off."""
    weight, scales = getattr(layer, f"{gemm}_weight"), getattr(layer, f"{gemm}_weight_scale")
    total = getattr(layer, f"{gemm}_weight_scale_2")
    padded_k, padded_n = weight.shape[1] * 16, weight.shape[2] // 2
    out = []
    for expert in range(layer.num_experts):
        real = cpu_marlin.marlin_weight(
            weight[expert].data, scales[expert].data, total[expert].data, padded_k, padded_n, layer.params_dtype
        )
        if gemm == "w13":
            real = real.view(2, padded_n // 2, padded_k)[:, : n // 2].reshape(n, padded_k)
        out.append(real[:n, :k])
    return out
