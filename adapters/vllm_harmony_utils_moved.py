"""vllm.entrypoints.harmony_utils, which vLLM 0.13 moved below openai.parser."""

from verl_compat.records import Adapter, Provide

ADAPTER = Adapter(
    id="vllm_harmony_utils_moved",
    kind="rename",
    summary="vllm.entrypoints.harmony_utils, which vLLM 0.13 moved below openai.parser",
    target="vllm.entrypoints.harmony_utils",
    applies={"vllm": ">=0.13"},
    tested=(
        {"vllm": "0.15.1"},
        {"vllm": "0.33.0"},
    ),
    needed=(),
    patches=(Provide({"get_encoding": "vllm.entrypoints.openai.parser.harmony_utils:get_encoding"}),),
    why="verl before 0.7.1 imports get_encoding from the old home: ImportError when the server starts.",
    links=("https://github.com/verl-project/verl/pull/4934",),
    keep="vLLM will not have it again",
    reports=("verl#4934",),
)
