"""What can go wrong, named. The first line of each docstring says what it means for the caller."""

from __future__ import annotations

from collections.abc import Mapping


class NightlyError(Exception):
    """Something about the nightly job that can be named."""


class RunTaken(NightlyError):
    """Somebody else has changed this run, or started one, since it was read; read again."""


class JobRefused(NightlyError):
    """The job was not taken and never will be as it is: a person must act."""


class JobUnavailable(NightlyError):
    """No answer, or not now; whether the job was taken is not known. Ask again with its token."""


class InputUnreadable(NightlyError):
    """What data there are cannot be seen: a missing place, or no permission."""


class NightFailed(NightlyError):
    """Nobody knows which dates of some data sets are to be recomputed; try again."""

    def __init__(self, errors: Mapping[str, Exception]) -> None:
        super().__init__("; ".join(f"{name}: {error}" for name, error in errors.items()))
