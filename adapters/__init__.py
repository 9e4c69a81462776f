"""Adapters: one module per upstream change, data only."""
