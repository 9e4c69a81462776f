"""Integrity checks: what is saved, loaded, configured and synced is compared with what was asked for."""
