"""A newer adapter checkpoint given to verl 0.7 is named."""

from verl_compat.records import Adapter, Has, Wrap

ADAPTER = Adapter(
    id="verl_0_7_adapter_format",
    kind="diagnose",
    summary="verl 0.7 says so when given an adapter in the distributed format that verl 0.8 and newer write",
    target="verl.utils.megatron_peft_utils",
    applies={"verl": ">=0.7.0,<0.8"},
    tested=({"verl": "0.7.1"},),
    needed=(Has("load_adapter_checkpoint"),),
    patches=(
        Wrap(
            "load_adapter_checkpoint",
            "verl_compat.shims.adapter_formats:load_rank_adapter",
            params=("model", "checkpoint_path"),
        ),
    ),
    why=(
        "verl 0.7 reads one .pt file per rank, newer verl a Megatron distributed checkpoint. The error of "
        "verl 0.7 names a missing file of the old format and not the reason."
    ),
    links=("https://github.com/verl-project/verl/pull/6335",),
    retire_when={"verl": ">=0.8"},
)
