"""np.product in megatron-core's dist_checkpointing.exchange_utils under NumPy 2."""

from verl_compat.records import Adapter, Replace, Test

ADAPTER = Adapter(
    id="core_lt_0_16_np_product_exchange_utils",
    kind="rename",
    summary="np.product in megatron-core's dist_checkpointing.exchange_utils under NumPy 2",
    target="megatron.core.dist_checkpointing.exchange_utils",
    applies={"megatron-core": ">=0.14,<0.16"},
    tested=(
        {"megatron-core": "0.14.0"},
        {"megatron-core": "0.15.3"},
    ),
    needed=(Test("verl_compat.shims.numpy_names:lacks_product"),),
    patches=(Replace("np", "verl_compat.shims.numpy_names:with_product", make=True, data=True),),
    why=(
        "Saving a checkpoint raises AttributeError: module 'numpy' has no attribute 'product' where "
        "vLLM brought NumPy 2. Only this module's `np` knows the old name; NumPy is not touched."
    ),
    links=(
        "https://github.com/rllm-org/rllm/pull/498",
        "https://github.com/OpenPipe/ART/pull/565",
        "https://github.com/NovaSky-AI/SkyRL/pull/1175",
    ),
    retire_when={"megatron-core": ">=0.16"},
    reports=(
        "rllm#498",
        "ART#565",
        "SkyRL#1175",
    ),
)
