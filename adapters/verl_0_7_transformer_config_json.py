"""The transformer config is saved from a snapshot on verl 0.7."""

from verl_compat.records import Adapter, Has, Wrap

ADAPTER = Adapter(
    id="verl_0_7_transformer_config_json",
    kind="guard",
    summary="transformer_config.json is complete on verl 0.7, and the live config is not changed while it is saved",
    target="verl.utils.checkpoint.megatron_checkpoint_manager",
    applies={"verl": ">=0.7.0,<0.8"},
    tested=({"verl": "0.7.1"},),
    needed=(Has("MegatronCheckpointManager.save_checkpoint"),),
    patches=(
        Wrap(
            "MegatronCheckpointManager.save_checkpoint",
            "verl_compat.shims.json_safe:save_with_config_snapshot",
            params=("self", "local_path"),
        ),
    ),
    why=(
        "verl 0.7 deletes attributes of the config that training uses, and loses them if saving fails; a "
        "nested dtype, Enum or Hugging Face config stops the checkpoint with TypeError."
    ),
    links=("https://github.com/verl-project/verl/pull/6288",),
    retire_when={"verl": ">=0.8"},
    reports=("verl#6288",),
)
