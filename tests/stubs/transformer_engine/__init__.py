"""Stand-in for Transformer Engine on a CPU: importable, computes nothing."""

__version__ = "2.14.1"
