"""gpt-oss on Bridge 0.4.0 and 0.4.1, which turn down_proj round twice."""

from verl_compat.records import Adapter, Wrap

ADAPTER = Adapter(
    id="bridge_0_4_gpt_oss_layout",
    kind="diagnose",
    summary="gpt-oss on Bridge 0.4.0 and 0.4.1, which turn down_proj round twice",
    target="megatron.bridge.models.gpt_oss.gpt_oss_bridge",
    applies={"megatron-bridge": ">=0.4.0,<0.4.2"},
    tested=(
        {"megatron-bridge": "0.4.0"},
        {"megatron-bridge": "0.4.1"},
    ),
    needed=(),
    patches=(Wrap("GPTOSSBridge.provider_bridge", "verl_compat.shims.diagnose_model:warn_gpt_oss_layout"),),
    why=(
        "The import transposes the experts' down_proj and the export transposes it again: reward 0 "
        "from step 0, without an error."
    ),
    links=(
        "https://github.com/NVIDIA-NeMo/Megatron-Bridge/pull/3162",
        "https://github.com/NVIDIA-NeMo/Megatron-Bridge/pull/3753",
    ),
    retire_when={"megatron-bridge": ">=0.4.2"},
    reports=("Megatron-Bridge#3162",),
)
