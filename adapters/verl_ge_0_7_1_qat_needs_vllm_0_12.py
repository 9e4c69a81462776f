"""One clear message where NVFP4 QAT meets a vLLM too old for it (verl 0.7.1 and newer)."""

from verl_compat.records import Adapter, Check

ADAPTER = Adapter(
    id="verl_ge_0_7_1_qat_needs_vllm_0_12",
    kind="diagnose",
    summary="says that NVFP4 QAT needs vLLM 0.12 or newer, instead of an AttributeError later",
    target="verl.utils.qat.vllm_patch",
    applies={"verl": ">=0.7.1,<0.10", "vllm": "<0.12"},
    tested=(),
    needed=(),
    patches=(Check("verl_compat.shims.marlin_verl:too_old"),),
    why="vLLM before 0.12 has no compressed-tensors NVFP4 MoE method; verl's own patch fails with AttributeError",
    links=("https://github.com/vllm-project/vllm/releases/tag/v0.12.0",),
    retire_when={"vllm": ">=0.12"},
)
