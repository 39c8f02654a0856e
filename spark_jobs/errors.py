"""What stops a job, in words for the person who has to do something about it."""

from __future__ import annotations


class JobError(Exception):
    """The job cannot go on. The message names the place and the fix."""


class BadInput(JobError):
    """The input is missing, may not be read, or holds nothing that could be computed."""


class BadOutput(JobError):
    """The output folder cannot be written to, or belongs to another kind of run."""


class Overtaken(JobError):
    """Another run published first, again and again."""
