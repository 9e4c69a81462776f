"""checkpoint.strict is honoured in both places where verl 0.8 saves Hugging Face weights."""

from verl_compat.records import Adapter, Wrap

ADAPTER = Adapter(
    id="verl_0_8_strict_save",
    kind="guard",
    summary="checkpoint.strict is honoured in both places where verl 0.8 saves Hugging Face weights",
    target="verl.utils.checkpoint.megatron_checkpoint_manager",
    applies={"verl": ">=0.8.0,<0.9"},
    tested=({"verl": "0.8.0"},),
    needed=(),
    patches=(
        Wrap("MegatronCheckpointManager.__init__", "verl_compat.shims.verl_repairs:save_as_strict_as_configured"),
    ),
    why=(
        "With 'hf_model' in checkpoint.save_contents the save refuses models that export fewer "
        "weights than the Hugging Face checkpoint has, although checkpoint.strict=False."
    ),
    links=("https://github.com/verl-project/verl/pull/7264",),
    retire_when={"verl": ">=0.9"},
    reports=("verl#7264",),
)
