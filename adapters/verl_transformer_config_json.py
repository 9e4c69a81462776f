"""The whole transformer config in strict JSON on verl 0.8 and newer."""

from verl_compat.records import Adapter, Has, Replace

ADAPTER = Adapter(
    id="verl_transformer_config_json",
    kind="guard",
    summary="transformer_config.json keeps every value, in strict JSON, on verl 0.8 and newer",
    target="verl.utils.checkpoint.megatron_checkpoint_manager",
    applies={"verl": ">=0.8.0"},
    tested=(
        {"verl": "0.8.0"},
        {"verl": "0.9.1"},
    ),
    needed=(Has("_to_json_safe_config_dict", "_config_to_shallow_dict"),),
    patches=(
        Replace(
            "_to_json_safe_config_dict",
            "verl_compat.shims.json_safe:json_safe_config_dict",
            params=("config_dict",),
        ),
    ),
    why=(
        "verl >= 0.8 leaves out nested dataclasses and configs, sets, tensors and callables without a word, "
        "writes NaN and Infinity, which are no JSON, and lets keys collide."
    ),
    links=("https://github.com/verl-project/verl/pull/6288",),
    keep="no verl release writes them",
    reports=("verl#6288",),
)
