"""verl's MTP postprocess ends as core's does: output processor, MuP scale."""

from verl_compat.records import Adapter, Wrap

ADAPTER = Adapter(
    id="verl_mtp_output",
    kind="guard",
    summary="verl's MTP postprocess ends as core's does: output processor, MuP scale",
    target="verl.models.mcore.mtp_patch",
    applies={"verl": ">=0.7.1", "megatron-core": ">=0.17"},
    tested=tuple(
        {"verl": verl, "megatron-core": core}
        for verl in ("0.7.1", "0.8.0", "0.9.1")
        for core in ("0.17.1", "0.18.2", "0.19.2")
    ),
    needed=(),
    patches=(
        Wrap(
            "_megatron_gptmodel_postprocess",
            "verl_compat.shims.mtp:finish_output",
            params=("self", "hidden_states", "input_ids", "position_ids", "labels"),
        ),
    ),
    why=(
        "verl 0.9 with fused kernels and a forward-only model whose MTP is off: the output processor is dropped, "
        "AttributeError on log_probs. Models with use_mup: logits are not scaled, without a word."
    ),
    links=("https://github.com/NVIDIA/Megatron-LM/releases/tag/core_v0.18.0",),
    keep="verl 0.9.1 takes an output_processor and never calls it",
)
