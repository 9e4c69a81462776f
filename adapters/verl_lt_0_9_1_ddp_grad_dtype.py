"""Gradients are reduced in FP32 on the Bridge path unless the optimizer keeps lower-precision gradients."""

from verl_compat.records import Adapter, Wrap

ADAPTER = Adapter(
    id="verl_lt_0_9_1_ddp_grad_dtype",
    kind="default",
    summary=("Gradients are reduced in FP32 on the Bridge path unless the optimizer keeps lower-precision gradients"),
    target="verl.workers.engine.megatron.transformer_impl",
    applies={"verl": ">=0.8.0,<0.9.1"},
    tested=(
        {"verl": "0.8.0"},
        {"verl": "0.9.0"},
    ),
    needed=(),
    patches=(
        Wrap("MegatronEngine._build_megatron_module", "verl_compat.shims.verl_repairs:reduce_grads_in_optimizer_dtype"),
    ),
    why=(
        "With Bridge, verl 0.8.0 and 0.9.0 reduce gradients in BF16 although the optimizer holds FP32 "
        "main gradients; verl 0.9.1 reduces in FP32. It changes numerics and needs the memory of FP32 "
        "gradient buckets, so it must be asked for."
    ),
    links=("https://github.com/verl-project/verl/pull/7485",),
    retire_when={"verl": ">=0.9.1"},
    default=False,
    reports=("verl#7485",),
)
