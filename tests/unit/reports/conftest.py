"""Tests of repairs and diagnoses on stand-ins: no upstream, no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from support.stubs import stubs  # noqa: F401
from verl_compat.shims import notices


@pytest.fixture(autouse=True)
def _say_again() -> Iterator[None]:
    notices.forget()
    yield
    notices.forget()


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """What verl-compat has warned of so far."""
    return lambda: [record.getMessage() for record in caplog.records if record.name == "verl_compat"]
