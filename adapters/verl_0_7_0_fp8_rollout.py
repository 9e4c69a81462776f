"""Says which vLLM verl 0.7.0's FP8 rollout works with, before training starts."""

from verl_compat.records import Adapter, Wrap

ADAPTER = Adapter(
    id="verl_0_7_0_fp8_rollout",
    kind="diagnose",
    summary="Says which vLLM verl 0.7.0's FP8 rollout works with, before training starts",
    target="verl.utils.vllm.vllm_fp8_utils",
    applies={"verl": ">=0.7.0,<0.7.1", "vllm": ">=0.14"},
    tested=(
        {"verl": "0.7.0", "vllm": "0.17.1"},
        {"verl": "0.7.0", "vllm": "0.20.2"},
        {"verl": "0.7.0", "vllm": "0.33.0"},
    ),
    needed=(),
    patches=(Wrap("apply_vllm_fp8_patches", "verl_compat.shims.vllm_experts:warn_fp8_of_verl_0_7_0"),),
    why=(
        "verl 0.7.0 sends FP8 scales as `_scale`, which vLLM 0.14 and newer do not read, and copies weight "
        "processing whose helper functions vLLM 0.20 removed: the first weight sync fails."
    ),
    links=(
        "https://github.com/verl-project/verl/issues/5683",
        "https://github.com/verl-project/verl/pull/6393",
        "https://github.com/verl-project/verl/pull/7136",
    ),
    retire_when={"verl": ">=0.7.1"},
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
