"""mtp.enable=False stays off when Megatron-Bridge reads the model configuration anew (verl 0.7.1 and 0.8)."""

from verl_compat.records import Adapter, Wrap

ADAPTER = Adapter(
    id="verl_lt_0_9_mtp_disabled",
    kind="guard",
    summary="mtp.enable=False stays off when Megatron-Bridge reads the model configuration anew (verl 0.7.1, 0.8)",
    target="verl.utils.megatron_utils",
    applies={"verl": ">=0.7.1,<0.9"},
    tested=({"verl": "0.7.1"}, {"verl": "0.8.0"}),
    needed=(),
    patches=(
        Wrap(
            "check_mtp_config", "verl_compat.shims.verl_repairs:keep_mtp_off", params=("model_config", "engine_config")
        ),
    ),
    why=(
        "verl clears the number of MTP layers in its own copy of the configuration, Bridge reads the "
        "checkpoint's: the model is built, trained and checkpointed with MTP layers."
    ),
    links=("https://github.com/verl-project/verl/pull/6626",),
    retire_when={"verl": ">=0.9"},
    consumers=("verl.workers.engine.megatron.transformer_impl",),
    reports=("verl#6626",),
)
