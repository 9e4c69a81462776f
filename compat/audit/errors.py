"""What can stop an audit: one class per cause, each message says what to do."""

from __future__ import annotations


class AuditError(Exception):
    """The audit could not run; the text says what was wrong, expected and what to do."""


class NoSuchVersionError(AuditError):
    """The index has no such release (or none for this platform)."""

    def __init__(self, message: str, nearest: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.nearest = nearest


class NoNetworkError(AuditError):
    """The package index could not be reached and the cache does not hold the release."""


class BadWheelError(AuditError):
    """The archive is damaged, unsafe, or a wheel of another project."""
