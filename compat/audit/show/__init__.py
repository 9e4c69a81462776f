"""Results as text, JSON, SARIF and Markdown."""
