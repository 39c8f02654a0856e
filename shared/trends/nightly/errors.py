"""The errors of the nightly job. Each docstring says what the error means for the caller."""

from __future__ import annotations

from collections.abc import Mapping


class RunTaken(Exception):
    """Another instance has changed this run, or started another run, since the read. Read again."""


class JobRefused(Exception):
    """The Spark service refused the job, and would refuse it again. An operator must act."""


class JobUnavailable(Exception):
    """The Spark service may have accepted the job: submit the same token again. ``status`` is the
    HTTP status of its answer, None without one."""

    def __init__(self, text: str, status: int | None = None) -> None:
        self.status = status
        super().__init__(text)


class InputUnreadable(Exception):
    """The input cannot be listed, because it does not exist or a permission is missing."""


class NightFailed(Exception):
    """The dates to recompute are unknown for some data sets. Try again."""

    def __init__(self, errors: Mapping[str, Exception]) -> None:
        super().__init__("; ".join(f"{name}: {error}" for name, error in errors.items()))
