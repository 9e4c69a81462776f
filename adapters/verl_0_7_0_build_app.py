"""verl 0.7.0 calls vLLM 0.16's build_app with the supported tasks that it requires."""

from verl_compat.records import Adapter, Replace, Test

ADAPTER = Adapter(
    id="verl_0_7_0_build_app",
    kind="guard",
    summary="verl 0.7.0 calls vLLM 0.16's build_app with the supported tasks that it requires",
    target="verl.workers.rollout.vllm_rollout.vllm_async_server",
    applies={"verl": ">=0.7.0,<0.7.1", "vllm": ">=0.12"},
    tested=({"verl": "0.7.0", "vllm": "0.16.0"},),
    needed=(Test("verl_compat.shims.verl_repairs:requires_supported_tasks"),),
    patches=(Replace("build_app", "verl_compat.shims.verl_repairs:make_build_app", make=True, data=True),),
    why=(
        "TypeError: build_app() missing 1 required positional argument: 'supported_tasks' when the "
        "server starts; vLLM 0.17 defaults to the value that is passed here."
    ),
    links=("https://github.com/verl-project/verl/pull/5093",),
    retire_when={"verl": ">=0.7.1"},
    reports=("verl#5093",),
)
