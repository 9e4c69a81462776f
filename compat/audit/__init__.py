"""Static audit: what a consumer uses of an upstream release, and what that release lacks.

Nothing that is audited is ever imported.  Needs the extra ``verl-compat[audit]``.
"""
