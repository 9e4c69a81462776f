"""verl 0.7.0 makes vLLM's WorkerWrapperBase without the argument that vLLM 0.14 dropped."""

from verl_compat.records import Adapter, Replace, Test

ADAPTER = Adapter(
    id="verl_0_7_0_worker_wrapper",
    kind="guard",
    summary="verl 0.7.0 makes vLLM's WorkerWrapperBase without the argument that vLLM 0.14 dropped",
    target="verl.workers.rollout.vllm_rollout.vllm_rollout",
    applies={"verl": ">=0.7.0,<0.7.1", "vllm": ">=0.12"},
    tested=(
        {"verl": "0.7.0", "vllm": "0.14.1"},
        {"verl": "0.7.0", "vllm": "0.17.1"},
    ),
    needed=(Test("verl_compat.shims.verl_repairs:refuses_vllm_config"),),
    patches=(
        Replace(
            "WorkerWrapperBase",
            "verl_compat.shims.verl_repairs:make_worker_wrapper",
            make=True,
            data=True,
        ),
    ),
    why=(
        "TypeError: WorkerWrapperBase.__init__() got an unexpected keyword argument 'vllm_config' "
        "when the rollout starts."
    ),
    links=("https://github.com/verl-project/verl/pull/4915",),
    retire_when={"verl": ">=0.7.1"},
    reports=("verl#4915",),
)
