"""Names the Bridge that fits, and the option, when verl needs Bridge and it is not installed."""

from verl_compat.records import Adapter, OnImportError

ADAPTER = Adapter(
    id="verl_bridge_missing",
    kind="diagnose",
    summary="Names the Bridge that fits, and the option, when verl needs Bridge and it is not installed",
    target="verl.models.mcore.bridge",
    applies={"verl": ">=0.7.0"},
    tested=(
        {"verl": "0.8.0"},
        {"verl": "0.9.1"},
    ),
    needed=(),
    patches=(OnImportError("verl_compat.shims.version_pairs:verl_bridge_missing"),),
    why=(
        "From verl 0.9 on Bridge is the default, but most images have mbridge only: "
        "ModuleNotFoundError: No module named 'megatron.bridge'."
    ),
    links=(
        "https://github.com/verl-project/verl/issues/6931",
        "https://github.com/verl-project/verl/pull/6951",
    ),
    keep="verl prints a pip line that does not fit the installed core",
    reports=(
        "verl#6931",
        "verl#6951",
    ),
)
