"""How often each function ran."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Counts:
    """Invocations that ended, and how many of them failed."""

    invocations: int = 0
    failures: int = 0

    def after(self, *, succeeded: bool) -> "Counts":
        """These counts and one invocation more."""
        return Counts(self.invocations + 1, self.failures + (not succeeded))
