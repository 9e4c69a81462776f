"""A state machine of what may happen to a model between two exports; each export is compared with Bridge's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from support.plan import Layout, assert_equal, build, fresh, outcome, parallel_sizes, peft_hook, stream, train_step
from verl_compat import plan_cache


class Events(RuleBasedStateMachine):
    """A model and what may happen to it between two exports."""

    path: Path
    layout = Layout("states", 1)

    @initialize()
    def make(self) -> None:
        plan_cache.clear()
        plan_cache.reset_stats()
        self.bridge, self.model = build(self.layout, self.path)
        self.seed = 0
        self.adapters = False

    @property
    def layer(self) -> Any:
        return self.model[0].decoder.layers[0]

    @property
    def world(self) -> int:
        import torch.distributed as dist

        return dist.get_world_size()

    @precondition(lambda self: self.world > 1)
    @rule(rank=st.integers(0, 1), name=st.sampled_from(["linear_fc1", "linear_fc2"]))
    def replace_parameter_on_one_rank(self, rank: int, name: str) -> None:
        import torch.distributed as dist

        if dist.get_rank() == rank:
            self.replace_parameter(name)

    @precondition(lambda self: self.world > 1)
    @rule(rank=st.integers(0, 1))
    def clear_on_one_rank(self, rank: int) -> None:
        import torch.distributed as dist

        if dist.get_rank() == rank:
            plan_cache.clear()

    @rule(mode=st.sampled_from(["merged", "unmerged", "adapters"]), times=st.integers(1, 2))
    def export(self, mode: str, times: int) -> None:
        for _ in range(times):
            actual = outcome(lambda: stream(self.bridge, self.model, mode))
            assert_equal(actual, fresh(self.bridge, self.model, mode), mode)

    @rule()
    def step(self) -> None:
        self.seed += 1
        train_step(self.model, self.seed)

    @rule()
    def offload_and_reload(self) -> None:
        for parameter in self.model[0].parameters():
            saved = parameter.data.clone()
            parameter.data.untyped_storage().resize_(0)
            parameter.data = saved

    @rule(dtype=st.sampled_from(["bfloat16", "float32", "float64"]))
    def change_dtype(self, dtype: str) -> None:
        import torch

        for parameter in self.layer.parameters():
            parameter.data = parameter.data.to(getattr(torch, dtype))

    @rule()
    def convert_module(self) -> None:
        self.model[0].double().float()

    @rule(name=st.sampled_from(["linear_fc1", "linear_fc2"]))
    def replace_parameter(self, name: str) -> None:
        import torch

        module = getattr(self.layer.mlp, name)
        module = getattr(module, "to_wrap", module)
        module.weight = torch.nn.Parameter(torch.randn_like(module.weight))

    @rule()
    def swap_layer(self) -> None:
        """Another layer object with other weights in the place of the first."""
        self.model[0].decoder.layers[0] = build(self.layout, self.path)[1][0].decoder.layers[0]
        self.adapters = False
        self.step()

    @rule()
    def quantizer(self) -> None:
        """A quantizer's buffer comes and goes: no weight, so that it is left out."""
        import torch

        fc1 = self.layer.mlp.linear_fc1
        fc1 = getattr(fc1, "to_wrap", fc1)
        fc1.weight_quantizer = torch.nn.Module()
        fc1.weight_quantizer.register_buffer("_amax", torch.ones(1))
        items, error = outcome(lambda: stream(self.bridge, self.model, "merged"))
        del fc1.weight_quantizer
        assert error is None
        assert not [name for name in dict(items) if "amax" in name]

    @rule()
    def buffer(self) -> None:
        """A buffer that nobody can name comes and goes: refused as Bridge does, by its name."""
        import torch

        mlp = self.layer.mlp
        mlp.register_buffer("extra_amax", torch.ones(1))
        _, error = outcome(lambda: stream(self.bridge, self.model, "merged"))
        del mlp.extra_amax
        assert error is not None
        assert "extra_amax" in str(error)

    @rule()
    def add_adapters(self) -> None:
        if not self.adapters:
            peft_hook("lora")(self.model)
            self.adapters = True
            self.step()

    @rule()
    def remove_adapters(self) -> None:
        if self.adapters:
            for module in list(self.model[0].modules()):
                for name, child in list(module.named_children()):
                    if hasattr(child, "to_wrap"):
                        setattr(module, name, child.to_wrap)
            self.adapters = False

    @rule(alpha=st.integers(1, 64))
    def scale_adapters(self, alpha: int) -> None:
        for module in self.model[0].modules():
            if hasattr(module, "linear_in") and hasattr(module, "alpha"):
                module.alpha = alpha

    @rule()
    def initialise_model_parallel_again(self) -> None:
        from megatron.core import parallel_state as mpu

        mpu.destroy_model_parallel()
        mpu.initialize_model_parallel(**parallel_sizes(self.layout))

    @rule(number=st.integers(0, 12))
    def give_up(self, number: int) -> None:
        started = stream(self.bridge, self.model, "merged")
        for _ in range(number):
            next(started, None)
        started.close()

    @rule()
    def another_bridge(self) -> None:
        from megatron.bridge import AutoBridge

        self.bridge = AutoBridge.from_hf_pretrained(str(self.path))

    @rule()
    def clear(self) -> None:
        plan_cache.clear(self.model)

    def teardown(self) -> None:
        stats = plan_cache.stats()
        assert stats.misses == sum(stats.reasons.values())
        assert not stats.exempt, stats.exempt
