"""Muon with the layer-wise distributed optimizer, which no released megatron-core fits."""

from verl_compat.records import Adapter, Has, Wrap

ADAPTER = Adapter(
    id="verl_muon_layer_wise",
    kind="diagnose",
    summary="Muon with the layer-wise distributed optimizer, which no released megatron-core fits",
    target="verl.workers.engine.megatron.transformer_impl",
    applies={"verl": ">=0.9.0"},
    tested=({"verl": "0.9.1"},),
    needed=(Has("MegatronEngine._build_megatron_module"),),
    patches=(Wrap("MegatronEngine._build_megatron_module", "verl_compat.shims.diagnose_model:warn_muon"),),
    why=(
        "verl needs tag_params_for_buffer_routing (core 0.18) and the DDP setting "
        "use_layer_wise_param_layout (no release up to 0.19.2)."
    ),
    links=("https://github.com/verl-project/verl/pull/7120",),
    keep="no released core has it",
    reports=("verl#7120",),
)
