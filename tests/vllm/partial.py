"""A part of a real vLLM, without the rest: named files are vLLM's own, everything else is a stand-in.

vLLM's Python files of any release (0.12 - 0.33) in a folder are enough: no third-party
package but torch, no compiled library, about a second.  Files in :data:`REAL` are
executed unchanged; any other ``vllm.*`` module yields stand-ins that are false, accept
any call and may be subclassed.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

LAYERS = "vllm.model_executor.layers"
QUANT = f"{LAYERS}.quantization"
CT = f"{QUANT}.compressed_tensors"

REAL = {
    "vllm._custom_ops",
    "vllm.envs",
    "vllm.scalar_type",
    "vllm.utils.math_utils",
    "vllm.model_executor.utils",
    "vllm.model_executor.parameter",
    f"{LAYERS}.fused_moe.config",
    f"{LAYERS}.fused_moe.activation",
    f"{LAYERS}.fused_moe.fused_moe_method_base",
    f"{LAYERS}.fused_moe.fused_marlin_moe",
    f"{LAYERS}.fused_moe.experts.marlin_moe",
    f"{LAYERS}.fused_moe.modular_kernel",
    f"{LAYERS}.fused_moe.moe_align_block_size",
    f"{LAYERS}.fused_moe.oracle.nvfp4",
    f"{LAYERS}.fusion.quant_activation",
    f"{QUANT}.kv_cache",
    f"{QUANT}.modelopt",
    f"{QUANT}.utils.layer_utils",
    f"{QUANT}.utils.marlin_utils",
    f"{QUANT}.utils.marlin_utils_fp4",
    f"{QUANT}.utils.marlin_utils_test",
    f"{QUANT}.utils.nvfp4_utils",
    f"{QUANT}.utils.nvfp4_moe_support",
    f"{QUANT}.utils.quant_utils",
    f"{CT}.schemes.compressed_tensors_w4a16_nvfp4",
    f"{CT}.schemes.compressed_tensors_w4a4_nvfp4",
    f"{CT}.compressed_tensors_moe.compressed_tensors_moe_w4a4_nvfp4",
    f"{CT}.compressed_tensors_moe",
    f"{CT}.compressed_tensors_moe.compressed_tensors_moe",
    "vllm.model_executor.kernels.linear.nvfp4.base",
    "vllm.model_executor.kernels.linear.nvfp4.marlin",
}


# Names that a package re-exports from files executed here.
MOE = f"{LAYERS}.fused_moe"
MOE_FILES = tuple(f"{MOE}.{name}" for name in ("fused_moe_method_base", "config", "activation", "modular_kernel"))
EXPORTS = {
    f"{CT}.compressed_tensors_moe": (f"{CT}.compressed_tensors_moe.compressed_tensors_moe",),
    MOE: MOE_FILES,
    f"{MOE}.layer": MOE_FILES,
}


class StandIn(abc.ABCMeta):
    """Metaclass of stand-ins: attributes are stand-ins too, a call with one class or function returns it."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return make(name)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if "_stand_in" in vars(cls):
            if len(args) == 1 and not kwargs and (isinstance(args[0], type) or hasattr(args[0], "__code__")):
                return args[0]  # used as a decorator
            return type.__call__(make(cls.__name__ + "_instance"))
        return super().__call__(*args, **kwargs)

    def __bool__(cls) -> bool:
        return "_stand_in" not in vars(cls)

    def __getitem__(cls, _: Any) -> Any:
        return cls

    def __iter__(cls) -> Any:
        return iter(())


def make(name: str) -> Any:
    """A fresh stand-in class."""
    if name.startswith("is_supported_config"):
        return lambda *_, **__: (False, "it is a stand-in")

    def anything(self: Any, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        return make(attribute)

    def initialise(self: Any, *args: Any, **kwargs: Any) -> None:
        following = super(cls, self).__init__
        if getattr(following, "__objclass__", None) is not object:
            following(*args, **kwargs)  # a mixin: the real base class comes next

    cls: Any = StandIn(name, (), {"_stand_in": True, "__init__": initialise, "__bool__": lambda self: False})
    if name.endswith("_instance"):
        cls.__getattr__ = anything  # type: ignore[attr-defined]
        cls.__call__ = lambda self, *args, **_: (
            args[0] if len(args) == 1 and hasattr(args[0], "__code__") else make(name)
        )  # type: ignore[method-assign]
        cls.__iter__ = lambda self: iter(())  # type: ignore[method-assign]
    return cls


class Module(ModuleType):
    """A stand-in module."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = self.exported(name)
        setattr(self, name, value)
        return value

    def exported(self, name: str) -> Any:
        """From a real file below this package, else a stand-in."""
        for file in EXPORTS.get(self.__name__, ()):
            with contextlib.suppress(ModuleNotFoundError):
                found = vars(importlib.import_module(file)).get(name)
                if found is not None:
                    return found
        return make(name)


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds ``vllm`` and everything below it."""

    def __init__(self, root: Path, given: dict[str, dict[str, Any]]) -> None:
        self.root, self.given = root, given

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.partition(".")[0] == "compressed_tensors":  # imported by vLLM up to 0.19, not used here
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        if name != "vllm" and not name.startswith("vllm."):
            return None
        file = self.root / (name.replace(".", "/") + ".py")
        package = self.root / name.replace(".", "/") / "__init__.py"
        if name in REAL and file.exists():
            return importlib.util.spec_from_file_location(name, file)
        if not file.exists() and not package.exists() and name != "vllm":
            return None  # a real absence stays one: ModuleNotFoundError
        spec = importlib.machinery.ModuleSpec(name, self, is_package=True)
        spec.origin = str(package if package.exists() else file)
        return spec

    def create_module(self, spec: Any) -> ModuleType:
        module = Module(spec.name)
        module.__path__ = []
        return module

    def exec_module(self, module: ModuleType) -> None:
        vars(module).update(self.given.get(module.__name__, {}))


class Platform:
    """An NVIDIA GPU of a given compute capability; every other question is answered with no."""

    def __init__(self, capability: int) -> None:
        self.capability = capability
        self.device_type = "cuda"

    def is_cuda(self) -> bool:
        return True

    is_cuda_alike = is_cuda

    def has_device_capability(self, needed: Any, *_: Any, **__: Any) -> bool:
        return self.capability >= (needed[0] * 10 + needed[1] if isinstance(needed, tuple) else needed)

    def get_device_capability(self, *_: Any, **__: Any) -> Any:
        import torch

        class Capability(tuple[int, ...]):
            major, minor = divmod(self.capability, 10)

            def to_int(self) -> int:
                return self[0] * 10 + self[1]

        del torch
        return Capability(divmod(self.capability, 10))

    def is_device_capability_family(self, family: int, *_: Any) -> bool:
        return family // 10 == self.capability // 10

    def fp8_dtype(self) -> Any:
        import torch

        return torch.float8_e4m3fn

    def use_sync_weight_loader(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: False


@dataclasses.dataclass
class QuantSpec:
    """Weight and activation key, as vLLM 0.30's pydantic class of this name has them."""

    weight: Any = None
    activation: Any = None


def marlin_kernel(*_: Any, **__: Any) -> Any:
    """What vLLM 0.20 and newer choose for NVFP4 on a Hopper GPU."""
    folder = "vllm.model_executor.kernels.linear.nvfp4"
    marlin, base = (importlib.import_module(f"{folder}.{name}") for name in ("marlin", "base"))
    return marlin.MarlinNvFp4LinearKernel(base.NvFp4LinearLayerConfig())


def no_all2all(*_: Any, **__: Any) -> Any:
    """Prepare and finalize of one rank: never called here, only asked what it is."""
    kernel = importlib.import_module(f"{LAYERS}.fused_moe.modular_kernel")
    base = getattr(kernel, "FusedMoEPrepareAndFinalizeModular", None) or kernel.FusedMoEPrepareAndFinalize
    body = {name: lambda *_, **__: None for name in base.__abstractmethods__}
    body["activation_format"] = property(lambda _: kernel.FusedMoEActivationFormat.Standard)
    return type("OneRank", (base,), body)()


def load(root: str | Path, version: str, capability: int = 90, compute_units: Any = lambda *_: 4) -> Finder:
    """Make ``import vllm...`` find the part of vLLM under ``root`` (the folder that holds ``vllm/``)."""
    forget()
    one = {"get_tensor_model_parallel_rank": lambda: 0, "get_tensor_model_parallel_world_size": lambda: 1}
    given = {
        "vllm": {"__version__": version},
        "vllm.platforms": {"current_platform": Platform(capability)},
        "vllm.utils.platform_utils": {"num_compute_units": compute_units, "is_pin_memory_available": lambda: False},
        "vllm.distributed": dict(one),
        "vllm.distributed.parallel_state": dict(one),
        f"{LAYERS}.fused_moe.all2all_utils": {"maybe_make_prepare_finalize": no_all2all},
        f"{MOE}.prepare_finalize": {"MoEPrepareAndFinalizeNoEP": no_all2all},
        "vllm.config.quantization": {"QuantSpec": QuantSpec},
        f"{QUANT}.utils.humming": {"prioritize_humming": list},
        "vllm.triton_utils": {"HAS_TRITON": False},
        "vllm.model_executor.kernels.linear": {"init_nvfp4_linear_kernel": marlin_kernel},
    }
    finder = Finder(Path(root), given)
    sys.meta_path.insert(0, finder)
    return finder


def forget() -> None:
    """Take every ``vllm`` module and the finder out again."""
    mine = (Finder.__module__, Finder.__qualname__)  # by name: this file may have been imported again
    sys.meta_path[:] = [f for f in sys.meta_path if (type(f).__module__, type(f).__qualname__) != mine]
    for name, module in list(sys.modules.items()):
        if name == "vllm" or name.startswith("vllm.") or isinstance(module, Module):
            del sys.modules[name]
