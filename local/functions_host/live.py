"""The invocations that run in this process, for which log lines arrive."""

live_invocations: set[str] = set()
"""Their ids."""
