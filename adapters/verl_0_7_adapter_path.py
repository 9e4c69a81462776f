"""lora.adapter_path is found in a plain dict on verl 0.7."""

from verl_compat.records import Adapter, Has, Wrap

ADAPTER = Adapter(
    id="verl_0_7_adapter_path",
    kind="guard",
    summary="lora.adapter_path is loaded on verl 0.7 where the configuration is a plain dict",
    target="verl.utils.megatron_utils",
    applies={"verl": ">=0.7.0,<0.8"},
    tested=({"verl": "0.7.1"},),
    needed=(Has("make_megatron_module"),),
    patches=(
        Wrap(
            "make_megatron_module",
            "verl_compat.shims.config_access:read_lora_by_attribute",
            params=("wrap_config", "tf_config", "hf_config"),
        ),
    ),
    why=(
        "verl 0.7 reads it with getattr, which finds nothing in the plain dict that its engine workers pass: "
        "the adapter is never loaded and training starts from a fresh one, in silence."
    ),
    links=("https://github.com/verl-project/verl/pull/6335",),
    retire_when={"verl": ">=0.8"},
)
