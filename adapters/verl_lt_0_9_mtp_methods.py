"""MTP of verl 0.7.1 and 0.8 takes and returns what core 0.18 and newer pass and unpack."""

from verl_compat.records import Adapter, Test, Wrap

ADAPTER = Adapter(
    id="verl_lt_0_9_mtp_methods",
    kind="guard",
    summary="MTP of verl 0.7.1 and 0.8 takes and returns what core 0.18 and newer pass and unpack",
    target="verl.models.mcore.mtp_patch",
    applies={"verl": ">=0.7.1,<0.9", "megatron-core": ">=0.18"},
    tested=tuple({"verl": verl, "megatron-core": core} for verl in ("0.7.1", "0.8.0") for core in ("0.18.2", "0.19.2")),
    needed=(Test("verl_compat.shims.mtp:core_calls_with_padding_mask"),),
    patches=(
        Wrap(
            "_megatron_gptmodel_postprocess",
            "verl_compat.shims.mtp:postprocess_as_core",
            params=("self", "hidden_states", "input_ids", "position_ids", "labels"),
        ),
        Wrap(
            "_patched_get_embeddings_for_detach",
            "verl_compat.shims.mtp:embeddings_with_mask",
            params=("self", "input_ids", "position_ids", "embedding", "hidden_states", "packed_seq_params"),
        ),
    ),
    why=(
        "verl replaces core's methods by copies of an older core's: TypeError, _megatron_gptmodel_postprocess() got "
        "an unexpected keyword argument 'padding_mask', and behind it four values where core unpacks five."
    ),
    links=("https://github.com/verl-project/verl/issues/6596", "https://github.com/verl-project/verl/issues/6842"),
    retire_when={"verl": ">=0.9"},
    reports=("verl#6596", "verl#6842"),
)
