"""An old or foreign adapter checkpoint given to verl 0.8 and newer is named."""

from verl_compat.records import Adapter, Has, Wrap

ADAPTER = Adapter(
    id="verl_adapter_format",
    kind="diagnose",
    summary="verl 0.8 and newer say so when given verl 0.7's per-rank .pt adapter, or one in Hugging Face format",
    target="verl.utils.megatron_utils",
    applies={"verl": ">=0.8.0"},
    tested=(
        {"verl": "0.8.0"},
        {"verl": "0.9.1"},
    ),
    needed=(Has("make_megatron_module"),),
    patches=(
        Wrap(
            "make_megatron_module",
            "verl_compat.shims.adapter_formats:check_distributed_adapter",
            params=("wrap_config", "tf_config", "hf_config"),
        ),
    ),
    why=(
        "verl >= 0.8 hands adapter_path to megatron-core's checkpoint reader, which stops deep inside with an "
        "error about metadata that names neither format; by then the model is built."
    ),
    links=("https://github.com/verl-project/verl/pull/6335",),
    keep="no verl release reads or names the old format",
)
