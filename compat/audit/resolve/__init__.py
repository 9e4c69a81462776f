"""What an upstream release defines, and what an expression is at one version set."""
