"""The upstreams: what they are called, where they state their version, which releases are known."""

from verl_compat.records import Audited, Upstream

UPSTREAMS: tuple[Upstream, ...] = (
    Upstream(
        dist="verl",
        package="verl",
        version_files=("version/version",),
        known=("0.7.0", "0.7.1", "0.8.0", "0.9.0", "0.9.1"),
    ),
    Upstream(
        dist="megatron-bridge",
        package="megatron.bridge",
        version_files=("package_info.py",),
        known=("0.3.0", "0.3.1", "0.4.0", "0.4.1", "0.4.2", "0.5.0", "0.5.1", "0.6.0", "0.6.2"),
    ),
    Upstream(
        dist="megatron-core",
        package="megatron.core",
        version_files=("package_info.py",),
        known=("0.14.0", "0.15.3", "0.16.1", "0.17.1", "0.18.0", "0.18.2", "0.19.0", "0.19.2"),
    ),
    Upstream(
        dist="vllm",
        package="vllm",
        version_files=("_version.py", "version.py"),
        known=(
            "0.12.0", "0.13.0", "0.14.1", "0.15.1", "0.16.0", "0.17.1", "0.18.1", "0.19.1", "0.20.2", "0.21.0",
            "0.22.1", "0.23.0", "0.24.0", "0.25.1", "0.26.0", "0.27.1", "0.28.0", "0.29.0", "0.30.0", "0.31.0",
            "0.32.0", "0.33.0",
        ),
    ),
    Upstream(dist="mbridge", package="mbridge", version_files=("__init__.py",), known=("0.15.1",)),
    Upstream(
        dist="transformers",
        package="transformers",
        version_files=("__init__.py",),
        known=("4.57.6", "5.3.0", "5.5.3", "5.8.1", "5.9.0", "5.12.1"),
    ),
    Upstream(dist="torch", package="torch", version_files=("version.py",), known=()),
    Upstream(dist="numpy", package="numpy", version_files=("version.py", "_version.py"), known=()),
    Upstream(dist="nvidia-modelopt", package="modelopt", version_files=(), known=()),
)  # fmt: skip

# Called with the versions found (distribution -> text); a text that one returns is shown by `verl-compat status`.
NOTES: tuple[str, ...] = ("verl_compat.shims.version_pairs:status_note",)

# What the others declare ranges of in their metadata; `verl-compat status` says where a release lies outside.
LIBRARIES: tuple[str, ...] = ("transformers", "torch", "numpy", "nvidia-modelopt")

# Who uses whose names.  The wheel of megatron-core also carries megatron.training from 0.17.
AUDITED: tuple[Audited, ...] = (
    Audited("verl", "verl", ("verl",), uses=("megatron-bridge", "megatron-core", "mbridge", "vllm")),
    Audited(
        "bridge",
        "megatron-bridge",
        ("megatron.bridge",),
        uses=("megatron-core",),
        partner_dist="megatron-core",
        partner={"0.3": "0.16.1", "0.4": "0.17.1", "0.5": "0.18.2", "0.6": "0.19.2"},
    ),
    Audited("core", "megatron-core", ("megatron.core", "megatron.training")),
    Audited("mbridge", "mbridge", ("mbridge",), uses=("megatron-core",)),
    Audited("vllm", "vllm", ("vllm",)),
)
