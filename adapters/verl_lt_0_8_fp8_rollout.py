"""Says which vLLM verl 0.7.1's FP8 rollout works with, before training starts."""

from verl_compat.records import Adapter, Wrap

ADAPTER = Adapter(
    id="verl_lt_0_8_fp8_rollout",
    kind="diagnose",
    summary="Says which vLLM verl 0.7.1's FP8 rollout works with, before training starts",
    target="verl.utils.vllm.vllm_fp8_utils",
    applies={"verl": ">=0.7.1,<0.8", "vllm": ">=0.20"},
    tested=(
        {"verl": "0.7.1", "vllm": "0.20.2"},
        {"verl": "0.7.1", "vllm": "0.33.0"},
    ),
    needed=(),
    patches=(Wrap("apply_vllm_fp8_patches", "verl_compat.shims.vllm_experts:warn_fp8_after_upgrade"),),
    why=(
        "verl 0.7.1 copies vLLM's FP8 weight processing, whose helper functions vLLM 0.20 removed: the "
        "first weight sync fails."
    ),
    links=(
        "https://github.com/verl-project/verl/issues/5683",
        "https://github.com/verl-project/verl/pull/6393",
        "https://github.com/verl-project/verl/pull/7136",
    ),
    retire_when={"verl": ">=0.8"},
    consumers=(
        "verl.workers.rollout.vllm_rollout.vllm_async_server",
        "verl.workers.rollout.vllm_rollout.utils",
        "verl.workers.rollout.vllm_rollout.vllm_rollout",
    ),
    reports=(
        "verl#5683",
        "verl#6393",
        "verl#7136",
    ),
)
