"""Names that Megatron-FSDP modules use without importing them."""

import os

__all__ = ["os"]
