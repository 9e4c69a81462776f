"""verl 0.8 leaves the recomputation of MTP layers to core 0.18 and newer."""

from verl_compat.records import Adapter, Test, Wrap

ADAPTER = Adapter(
    id="verl_0_8_mtp_recompute",
    kind="guard",
    summary="verl 0.8 leaves the recomputation of MTP layers to core 0.18 and newer",
    target="verl.models.mcore.mtp_patch",
    applies={"verl": ">=0.8.0,<0.9", "megatron-core": ">=0.18"},
    tested=({"verl": "0.8.0", "megatron-core": "0.18.2"}, {"verl": "0.8.0", "megatron-core": "0.19.2"}),
    needed=(Test("verl_compat.shims.mtp:core_calls_with_padding_mask"),),
    patches=(
        Wrap(
            "patch_mtp_layer_checkpointed_forward",
            "verl_compat.shims.mtp:leave_checkpointing_to_core",
            params=("model",),
        ),
    ),
    why=(
        "verl's copy wants the function to checkpoint as its first argument, core 0.18 passes tensors only: TypeError, "
        "_patched_checkpointed_forward() missing 1 required positional argument: 'forward_func'."
    ),
    links=("https://github.com/verl-project/verl/issues/6596",),
    retire_when={"verl": ">=0.9"},
    reports=("verl#6596",),
)
