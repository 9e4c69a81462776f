"""The version-independent helpers: where upstream has them, and which shim stands in."""

HELPERS: dict[str, tuple[str, str]] = {}

# shims that have no upstream counterpart: a module, or an object in one
OWN: dict[str, str] = {}
