"""Errors that stop a job. Each message says what is wrong, where, and what to do."""

from __future__ import annotations


class JobError(Exception):
    """The job cannot continue."""


class BadInput(JobError):
    """The input is missing, cannot be read, or has no data from which anything can be computed."""


class BadOutput(JobError):
    """The output folder cannot be written, or belongs to another kind of run."""


def first_line(error: Exception) -> str:
    """Returns the first line of an error of Spark's JVM or of an Azure client, without stack trace
    or response.
    """
    java = getattr(error, "java_exception", None)
    text: str = java.toString() if java is not None else str(error)
    first = text.partition("\n")[0] or type(error).__name__
    return first.removeprefix("java.io.FileNotFoundException: ")
