"""Pure implementations: importable with no upstream installed, no engine, no adapters."""
