from dataclasses import fields

import pytest
import torch
from omegaconf import OmegaConf

from support import assert_same_tensors, build_model, build_provider, export_state, forward_logits, read_checkpoint

TYPES = {
    "lora": ("megatron.bridge.peft.lora", "LoRA"),
    "vlm_lora": ("megatron.bridge.peft.lora", "VLMLoRA"),
    "canonical_lora": ("megatron.bridge.peft.canonical_lora", "CanonicalLoRA"),
    "dora": ("megatron.bridge.peft.dora", "DoRA"),
}


@pytest.fixture
def peft_utils(assert_path):
    from megatron.bridge.peft import utils

    for name in ("create_peft", "create_peft_hook", "load_peft_adapter_checkpoint"):
        assert_path(getattr(utils, name))
    return utils


@pytest.mark.parametrize("kind", TYPES)
def test_type_names_the_class(peft_utils, kind):
    peft = peft_utils.create_peft({"type": kind, "rank": 8, "alpha": 16, "dropout": 0.25})
    assert (type(peft).__module__, type(peft).__name__) == TYPES[kind]
    assert (peft.dim, peft.alpha, peft.dropout) == (8, 16, 0.25)


def test_default_type_is_lora(peft_utils):
    assert type(peft_utils.create_peft({"rank": 4})).__name__ == "LoRA"


def test_unknown_type_is_a_value_error_that_lists_the_types(peft_utils):
    with pytest.raises(ValueError, match=r"adalora.*canonical_lora.*dora.*lora.*vlm_lora"):
        peft_utils.create_peft({"type": "adalora", "rank": 8})


def test_rank_is_another_name_of_dim_and_wins(peft_utils):
    assert peft_utils.create_peft({"dim": 4}).dim == 4
    assert peft_utils.create_peft({"dim": 4, "rank": 8}).dim == 8


@pytest.mark.parametrize("config", [{}, {"rank": 0}, {"dim": 0}, {"rank": -1}, {"rank": 0, "type": "dora"}])
def test_no_peft_without_a_positive_rank(peft_utils, config):
    assert peft_utils.create_peft(config) is None


def test_rank_of_none_is_a_type_error(peft_utils):
    with pytest.raises(TypeError):
        peft_utils.create_peft({"rank": None})


def test_dict_config_is_as_good_as_a_dict_and_neither_is_changed(peft_utils):
    config = {"type": "lora", "rank": 8, "alpha": 32, "target_modules": ["linear_qkv"], "adapter_path": None}
    omega = OmegaConf.create(config)
    from_dict, from_omega = peft_utils.create_peft(config), peft_utils.create_peft(omega)
    for name in ("dim", "alpha"):
        assert getattr(from_dict, name) == getattr(from_omega, name)
    assert list(from_dict.target_modules) == list(from_omega.target_modules) == ["linear_qkv"]
    assert config["rank"] == omega["rank"] == 8
    assert config["type"] == omega["type"] == "lora"


def test_keys_that_the_class_lacks_are_dropped(peft_utils):
    peft = peft_utils.create_peft({"rank": 8, "adapter_path": "/nowhere", "merge": True, "lora_dtype": None})
    assert not hasattr(peft, "adapter_path")
    assert not hasattr(peft, "merge")


@pytest.mark.parametrize(
    ("config", "argument", "expected"),
    [
        ({}, None, None),
        ({}, torch.bfloat16, torch.bfloat16),
        ({}, "fp16", torch.float16),
        ({"dtype": "bf16"}, torch.float32, torch.bfloat16),
        ({"dtype": None}, torch.float32, torch.float32),
        ({"lora_dtype": "float32"}, torch.bfloat16, torch.float32),
        ({"lora_dtype": torch.float16, "dtype": "bf16"}, None, torch.float16),
        ({"lora_dtype": "torch.BFloat16"}, None, torch.bfloat16),
    ],
)
def test_adapter_dtype(peft_utils, config, argument, expected):
    assert peft_utils.create_peft({"rank": 8, **config}, dtype=argument).lora_dtype is expected


def test_dtype_is_dropped_where_the_class_has_none(peft_utils):
    peft = peft_utils.create_peft({"type": "dora", "rank": 8, "lora_dtype": "bf16"}, dtype="fp16")
    has_field = "lora_dtype" in {field.name for field in fields(peft)}
    assert getattr(peft, "lora_dtype", None) is (torch.bfloat16 if has_field else None)


def test_unknown_dtype_is_a_value_error(peft_utils):
    with pytest.raises(ValueError, match="bfloat17"):
        peft_utils.create_peft({"rank": 8, "lora_dtype": "bfloat17"})


@pytest.mark.parametrize("kind", ["lora", "canonical_lora", "dora"])
def test_hook_puts_trainable_adapters_in(peft_utils, dense_checkpoint, kind):
    peft = peft_utils.create_peft({"type": kind, "rank": 4, "alpha": 8})
    seen = []
    hooks = [peft_utils.create_peft_hook(peft), lambda model: seen.append(model) or model]
    (chunk,) = build_model(build_provider(dense_checkpoint)[1], hooks=hooks)
    assert seen == [[chunk]]
    names = dict(chunk.named_parameters())
    trainable = {name for name, parameter in names.items() if parameter.requires_grad}
    assert trainable == {name for name in names if "adapter" in name}
    assert len(trainable) >= 4 * 4 * 2  # layers x linears x (in, out)
    assert trainable <= peft.params_to_save

    forward_logits([chunk], torch.randint(0, 512, (1, 5))).sum().backward()
    assert any(names[name].grad is not None and names[name].grad.abs().sum() > 0 for name in trainable)
    assert all(names[name].grad is None for name in names.keys() - trainable)


def test_vlm_lora_freezes_by_part(peft_utils):
    """A GPT model has no vision tower, so VLMLoRA freezes a stand-in with its three parts."""
    model = torch.nn.Module()
    for name in ("vision_model", "vision_projection", "language_model"):
        model.add_module(name, torch.nn.Linear(2, 2))
    peft = peft_utils.create_peft(
        {"type": "vlm_lora", "rank": 4, "freeze_vision_model": False, "freeze_language_model": True}
    )
    peft.freeze_model([model])
    trainable = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trainable == {"vision_model.weight", "vision_model.bias"}


def test_hook_without_training_freezes_the_adapters(peft_utils, dense_checkpoint):
    peft = peft_utils.create_peft({"rank": 4})
    (chunk,) = build_model(
        build_provider(dense_checkpoint)[1], hooks=[peft_utils.create_peft_hook(peft, training=False)]
    )
    assert any("adapter" in name for name, _ in chunk.named_parameters())
    assert not any(parameter.requires_grad for parameter in chunk.parameters())
    assert not chunk.training


def lora_model(peft_utils, checkpoint, rank=4, **overrides):
    peft = peft_utils.create_peft({"rank": rank, "alpha": 8})
    bridge, provider = build_provider(checkpoint, **overrides)
    model = build_model(provider, hooks=[peft_utils.create_peft_hook(peft)])
    bridge.load_hf_weights(model, str(checkpoint))
    return peft, bridge, model


def adapters(model):
    return {name: value.detach().clone() for name, value in model[0].named_parameters() if "adapter" in name}


def randomise_adapters(model, seed=7):
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model[0].named_parameters():
            if "adapter" in name:
                parameter.normal_()


def save_adapters(model, peft, path):
    """As Bridge and verl save them: the model's sharded state dict, filtered."""
    from megatron.bridge.training.checkpointing import apply_peft_adapter_filter_to_state_dict
    from megatron.core import dist_checkpointing

    sections = {"model": model[0].sharded_state_dict()}
    path.mkdir()
    dist_checkpointing.save(apply_peft_adapter_filter_to_state_dict(sections, peft), str(path))


@pytest.fixture(scope="module")
def saved(dense_checkpoint, tmp_path_factory):
    """An adapter checkpoint: its folder, its adapters, and the merged export of its model."""
    from megatron.bridge.peft import utils

    peft, bridge, model = lora_model(utils, dense_checkpoint)
    randomise_adapters(model)
    path = tmp_path_factory.mktemp("adapter") / "checkpoint"
    save_adapters(model, peft, path)
    return path, adapters(model), export_state(bridge, model)


@pytest.mark.parametrize("options", [{}, {"fully_parallel_load": False}, {"model_sd_kwargs": {}}])
@pytest.mark.parametrize("single", [False, True])
def test_adapter_checkpoint_round_trip(peft_utils, dense_checkpoint, saved, options, single):
    path, expected, merged = saved
    peft, bridge, model = lora_model(peft_utils, dense_checkpoint)
    randomise_adapters(model, seed=99)
    base = {name: value.clone() for name, value in model[0].named_parameters() if "adapter" not in name}
    target = model[0] if single else model
    assert peft_utils.load_peft_adapter_checkpoint(target, path, peft, **options) is None
    assert_same_tensors(adapters(model), expected)
    now = dict(model[0].named_parameters())
    assert all(torch.equal(now[name], value) for name, value in base.items())
    assert_same_tensors(export_state(bridge, model), merged)


def test_given_process_groups_and_strategy(peft_utils, dense_checkpoint, saved):
    from megatron.core.dist_checkpointing.strategies.torch import TorchDistLoadShardedStrategy
    from megatron.core.process_groups_config import ProcessGroupCollection

    path, expected, _ = saved
    peft, _, model = lora_model(peft_utils, dense_checkpoint)
    groups = ProcessGroupCollection.use_mpu_process_groups()
    peft_utils.load_peft_adapter_checkpoint(model, str(path), peft=peft, pg_collection=groups)
    assert_same_tensors(adapters(model), expected)

    class Counting(TorchDistLoadShardedStrategy):
        loads = 0

        def load(self, *args, **kwargs):
            Counting.loads += 1
            return super().load(*args, **kwargs)

    randomise_adapters(model)
    peft_utils.load_peft_adapter_checkpoint(model, path, peft, load_strategy=Counting())
    assert Counting.loads == 1
    assert_same_tensors(adapters(model), expected)


def test_another_rank_is_refused(peft_utils, dense_checkpoint, saved):
    from megatron.core.dist_checkpointing.core import CheckpointingException
    from torch.distributed.checkpoint.api import CheckpointException

    peft, _, model = lora_model(peft_utils, dense_checkpoint, rank=2)
    with pytest.raises((CheckpointException, CheckpointingException), match="adapter"):
        peft_utils.load_peft_adapter_checkpoint(model, saved[0], peft)


def test_merged_export_differs_from_the_base_where_adapted(dense_checkpoint, saved):
    base = read_checkpoint(dense_checkpoint)
    merged = saved[2]
    assert merged.keys() == base.keys()
    assert torch.equal(merged["model.embed_tokens.weight"], base["model.embed_tokens.weight"])
    assert not torch.equal(
        merged["model.layers.0.self_attn.q_proj.weight"], base["model.layers.0.self_attn.q_proj.weight"]
    )
