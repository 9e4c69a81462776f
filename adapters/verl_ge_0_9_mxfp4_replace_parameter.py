"""verl 0.9's MXFP4 refit calls vLLM 0.33's replace_parameter with the arguments that it has."""

from verl_compat.records import Adapter, Replace, Test

ADAPTER = Adapter(
    id="verl_ge_0_9_mxfp4_replace_parameter",
    kind="guard",
    summary="verl 0.9's MXFP4 refit calls vLLM 0.33's replace_parameter with the arguments that it has",
    target="verl.utils.vllm.vllm_fp4_utils",
    applies={"verl": ">=0.9.0", "vllm": ">=0.33"},
    tested=({"verl": "0.9.1", "vllm": "0.33.0"},),
    needed=(Test("verl_compat.shims.vllm_experts:takes_no_prefer_copy"),),
    patches=(
        Replace(
            "_replace_parameter_in_place",
            "verl_compat.shims.vllm_experts:make_replace_in_place",
            make=True,
            params=("layer", "param_name", "new_data"),
        ),
    ),
    why=("verl passes prefer_copy, which vLLM 0.33 dropped: TypeError in the first weight sync of an MXFP4 model."),
    links=("https://github.com/verl-project/verl/blob/v0.9.1/verl/utils/vllm/vllm_fp4_utils.py",),
    keep="verl 0.9.1 passes it",
)
