"""LinearForLastLayer, create_value_head_hook and make_value_model for Bridge before 0.5."""

from verl_compat.records import Adapter, Add, Lacks

ADAPTER = Adapter(
    id="bridge_lt_0_5_value_head",
    kind="backport",
    summary="LinearForLastLayer, create_value_head_hook and make_value_model for Bridge before 0.5",
    target="megatron.bridge.training.utils.train_utils",
    applies={"megatron-bridge": ">=0.3.0,<0.5"},
    tested=(
        {"megatron-bridge": "0.3.1", "megatron-core": "0.16.1"},
        {"megatron-bridge": "0.4.2", "megatron-core": "0.17.1"},
        {"megatron-bridge": "0.4.2", "megatron-core": "0.17.1", "verl": "0.8.0"},
        {"megatron-bridge": "0.4.2", "megatron-core": "0.17.1", "verl": "0.9.1"},
    ),
    needed=(Lacks("LinearForLastLayer", "create_value_head_hook", "make_value_model"),),
    patches=(
        Add("LinearForLastLayer", "verl_compat.shims.value_head:LinearForLastLayer"),
        Add("create_value_head_hook", "verl_compat.shims.value_head:create_value_head_hook"),
        Add("make_value_model", "verl_compat.shims.value_head:make_value_model"),
    ),
    why=(
        "verl 0.8 stops at ImportError on `import verl.models.mcore.bridge`. verl 0.9 falls back on a "
        "value head of its own whose hook returns None, so that the next hook, freezing the MoE router, "
        "is silently skipped."
    ),
    links=(
        "https://github.com/NVIDIA-NeMo/Megatron-Bridge/pull/3813",
        "https://github.com/verl-project/verl/pull/6335",
        "https://github.com/verl-project/verl/pull/6682",
    ),
    retire_when={"megatron-bridge": ">=0.5"},
    reports=("verl#6682",),
)
