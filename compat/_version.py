"""The version of verl-compat, read by the build and by the report."""

__version__ = "0.1.0"
