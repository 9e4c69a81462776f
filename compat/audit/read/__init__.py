"""What the consumer's sources say, before any upstream is looked at."""
