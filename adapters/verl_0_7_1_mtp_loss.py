"""verl 0.7.1 computes the MTP loss without a method that core 0.16 dropped, and trains detached MTP layers."""

from verl_compat.records import Adapter, Test, Wrap

ADAPTER = Adapter(
    id="verl_0_7_1_mtp_loss",
    kind="guard",
    summary="verl 0.7.1 computes the MTP loss without a method that core 0.16 dropped, and trains detached MTP layers",
    target="verl.models.mcore.mtp_patch",
    applies={"verl": ">=0.7.1,<0.8", "megatron-core": ">=0.16"},
    tested=tuple({"verl": "0.7.1", "megatron-core": core} for core in ("0.16.1", "0.17.1", "0.18.2", "0.19.2")),
    needed=(Test("verl_compat.shims.mtp:lacks_loss_without_logits"),),
    patches=(
        Wrap(
            "_megatron_gptmodel_postprocess",
            "verl_compat.shims.mtp:with_loss_of_output_layer",
            params=("self", "hidden_states", "input_ids", "position_ids", "labels"),
        ),
        Wrap(
            "_patched_get_embeddings_for_detach",
            "verl_compat.shims.mtp:embeddings_that_train",
            params=("self", "input_ids", "position_ids", "embedding", "hidden_states"),
        ),
    ),
    why=(
        "MTP training: AttributeError, no compute_output_layer_and_language_model_loss. With detach_encoder and full "
        "recomputation the MTP layers get no gradient, without a word."
    ),
    links=("https://github.com/verl-project/verl/issues/6842",),
    retire_when={"verl": ">=0.8"},
)
