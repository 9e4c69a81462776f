"""verl-compat: makes the verl, megatron-bridge, megatron-core and vLLM releases that people have work together.

Nothing has to be called.  ``activate``, ``revert`` and ``status`` are here for people who
want to look or to decide by themselves; the version-independent helpers of
``verl_compat.adapters.public`` (``create_ddp_config`` and so on) are importable from here.

This module runs at the start of every interpreter of the environment: it imports nothing.
"""

__version__ = "0.1.0"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from verl_compat.report import Status

__all__ = ["__version__", "activate", "revert", "status"]


def activate() -> None:
    """Put the import finder in place and patch watched modules that are already imported.

    Idempotent and safe in every process.  Never raises, except in strict mode
    (``VERL_COMPAT=strict``).
    """
    from verl_compat.engine import activate

    activate()


def revert() -> None:
    """Undo every patch exactly and take the finder away, until ``activate()`` is called again."""
    from verl_compat.engine import revert

    revert()


def status() -> "Status":
    """What was found, applied and left alone in this process."""
    from verl_compat.report import current_status

    return current_status()


def __getattr__(name: str) -> "Any":
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from verl_compat.public import resolve

    return resolve(name)


def __dir__() -> "list[str]":
    from verl_compat.public import listed

    return sorted({*globals(), *listed()})
