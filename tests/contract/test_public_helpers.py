"""``from verl_compat import <helper>`` is Bridge's own where it has one, else ours."""

import pytest

HELPERS = {
    "LinearForLastLayer": "megatron.bridge.training.utils.train_utils",
    "apply_overrides_and_finalize": "megatron.bridge.models.model_provider",
    "create_ddp_config": "megatron.bridge.training.utils.config_utils",
    "create_peft": "megatron.bridge.peft.utils",
    "create_peft_hook": "megatron.bridge.peft.utils",
    "create_value_head_hook": "megatron.bridge.training.utils.train_utils",
    "freeze_moe_router": "megatron.bridge.training.utils.train_utils",
    "load_peft_adapter_checkpoint": "megatron.bridge.peft.utils",
    "make_value_model": "megatron.bridge.training.utils.train_utils",
}


@pytest.mark.parametrize("name", HELPERS)
def test_public_helper_is_the_one_under_bridges_name(name, assert_path):
    import importlib

    import verl_compat

    helper = getattr(verl_compat, name)
    assert_path(helper)
    home = importlib.import_module(HELPERS[name])
    owner = home.ModelProviderMixin if name == "apply_overrides_and_finalize" else home
    assert helper is getattr(owner, name)
