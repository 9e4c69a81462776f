import pytest

FSDP_PRESETS = {
    "use_distributed_optimizer": True,
    "check_for_nan_in_grad": True,
    "use_megatron_fsdp": True,
    "data_parallel_sharding_strategy": "optim_grads_params",
    "overlap_grad_reduce": True,
}


@pytest.fixture
def create_ddp_config(assert_path):
    from megatron.bridge.training.utils.config_utils import create_ddp_config

    assert_path(create_ddp_config)
    return create_ddp_config


@pytest.fixture
def defaults():
    from megatron.bridge.training.config import DistributedDataParallelConfig

    return DistributedDataParallelConfig()


def test_plain_config_is_bridges_own_and_finalized(create_ddp_config, defaults):
    config = create_ddp_config()
    assert type(config) is type(defaults)
    assert config.use_distributed_optimizer
    assert not config.use_megatron_fsdp
    assert config.data_parallel_sharding_strategy == defaults.data_parallel_sharding_strategy


def test_without_distributed_optimizer(create_ddp_config):
    assert not create_ddp_config(use_distributed_optimizer=False).use_distributed_optimizer


def test_nothing_to_configure_without_wrapping(create_ddp_config):
    assert create_ddp_config(wrap_with_ddp=False, overrides={"overlap_grad_reduce": True}) is None


@pytest.mark.parametrize("name", FSDP_PRESETS)
def test_megatron_fsdp_preset(create_ddp_config, name):
    config = create_ddp_config(use_megatron_fsdp=True, use_distributed_optimizer=False)
    assert getattr(config, name) == FSDP_PRESETS[name]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("check_for_nan_in_grad", False),
        ("data_parallel_sharding_strategy", "optim_grads"),
        ("overlap_grad_reduce", False),
        ("use_distributed_optimizer", False),
        ("use_megatron_fsdp", False),
        ("grad_reduce_in_fp32", True),
    ],
)
def test_override_wins_over_preset(create_ddp_config, name, value):
    config = create_ddp_config(use_megatron_fsdp=True, overrides={name: value}, finalize=False)
    assert getattr(config, name) == value
    for preset in FSDP_PRESETS.keys() - {name}:
        assert getattr(config, preset) == FSDP_PRESETS[preset]


def test_overrides_are_not_changed(create_ddp_config):
    overrides = {"overlap_grad_reduce": True}
    create_ddp_config(use_megatron_fsdp=True, overrides=overrides)
    assert overrides == {"overlap_grad_reduce": True}


def test_finalize_validates(create_ddp_config):
    """reuse_grad_buf_for_mxfp8_param_ag needs overlap_param_gather: finalize refuses, no finalize accepts."""
    bad = {"reuse_grad_buf_for_mxfp8_param_ag": True, "fp8_param_gather": False}
    assert create_ddp_config(overrides=bad, finalize=False).reuse_grad_buf_for_mxfp8_param_ag
    with pytest.raises(AssertionError):
        create_ddp_config(overrides=bad)


def test_unknown_override_is_a_type_error(create_ddp_config):
    with pytest.raises(TypeError, match="overlap_grad_reduction"):
        create_ddp_config(overrides={"overlap_grad_reduction": True})
