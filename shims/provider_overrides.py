"""``ModelProviderMixin.apply_overrides_and_finalize``, as Bridge has it from 0.5.0."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any


def apply_overrides_and_finalize(self: Any, dtype: Any = None, overrides: Mapping[str, object] | None = None) -> Any:
    """Set a provider's dtype and attributes, then finalize it (Bridge PR #3866).

    All names are checked before the first is set, so a bad one leaves the overrides unapplied.
    Bridge 0.5 also lays out DeepSeek-V4 pipelines here; no older Bridge has that model.

    Args:
        self: the model provider.
        dtype: parameter dtype; sets ``params_dtype``, ``fp16`` and ``bf16``.  None leaves them alone.
        overrides: attributes to set.

    Returns:
        The provider.

    Raises:
        AttributeError: the provider has no attribute of that name; close matches are named.
    """
    values = dict(overrides or {})
    check_override_names(self, values)
    if dtype is not None:
        import torch

        self.params_dtype = dtype
        self.fp16 = dtype == torch.float16
        self.bf16 = dtype == torch.bfloat16
    for name, value in values.items():
        setattr(self, name, value)
    # A concrete provider has it in every version; the mixin declares it only from 0.5.
    finalize = getattr(self, "finalize", None)
    if finalize is not None:
        finalize()
    return self


def check_override_names(provider: Any, names: Iterable[str]) -> None:
    """Every name must be an attribute of the provider.

    Raises:
        AttributeError: those that are not, each with close matches.
    """
    unknown = [name for name in names if not hasattr(provider, name)]
    if unknown:
        raise AttributeError(_unknown_overrides(provider, unknown))


def _unknown_overrides(provider: Any, names: Iterable[str]) -> str:
    known = [name for name in dir(provider) if not name.startswith("_")]
    hints = []
    for name in names:
        close = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
        hints.append(f"{name!r}" + (f" (did you mean {', '.join(close)}?)" if close else ""))
    return (
        f"{type(provider).__name__} has no attribute {'; '.join(hints)}. "
        "Overrides must name attributes of the provider: remove or correct them."
    )
