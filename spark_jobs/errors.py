"""The error that stops a job."""

from __future__ import annotations


class JobError(Exception):
    """The job cannot continue. The message says what is wrong, where, and what to do."""


def first_line(error: Exception) -> str:
    """Returns an error of Spark's JVM or of an Azure client without stack trace or response."""
    java = getattr(error, "java_exception", None)
    text: str = java.toString() if java is not None else str(error)
    first = text.partition("\n")[0] or type(error).__name__
    return first.removeprefix("java.io.FileNotFoundException: ")
