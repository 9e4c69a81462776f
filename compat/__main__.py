"""``python -m verl_compat``: the command without its script on the path."""

from verl_compat.cli import main

raise SystemExit(main())
