"""core 0.18's MTP layer recomputes with the padding mask that it passes to itself."""

from verl_compat.records import Adapter, Test, Wrap

ADAPTER = Adapter(
    id="core_0_18_mtp_full_recompute",
    kind="guard",
    summary="core 0.18's MTP layer recomputes with the padding mask that it passes to itself",
    target="megatron.core.transformer.multi_token_prediction",
    applies={"megatron-core": ">=0.18,<0.19"},
    tested=({"megatron-core": "0.18.2"},),
    needed=(Test("verl_compat.shims.mtp:recompute_refuses_mask"),),
    patches=(
        Wrap(
            "MultiTokenPredictionLayer._checkpointed_forward",
            "verl_compat.shims.mtp:checkpoint_with_mask",
            params=("self", "hidden_states", "decoder_input"),
        ),
    ),
    why=(
        "MTP with recompute_granularity=full, whatever verl: TypeError, _checkpointed_forward() got an unexpected "
        "keyword argument 'padding_mask'. Without the keyword padding would be routed to experts."
    ),
    links=("https://github.com/NVIDIA/Megatron-LM/issues/4933", "https://github.com/NVIDIA/Megatron-LM/pull/6367"),
    retire_when={"megatron-core": ">=0.19"},
    reports=("Megatron-LM#4933", "verl#7326"),
)
