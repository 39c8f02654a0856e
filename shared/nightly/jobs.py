"""A run as arguments of the job."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import date

from shared.nightly.model import Job, Run

DATASET = "{dataset}"


def job(run: Run, source: str, output: str, arguments: Sequence[str]) -> Job:
    """``source`` and ``output`` may have ``{dataset}`` in them, for the data set's name."""
    return Job(
        run.token,
        (
            "--input",
            source.replace(DATASET, run.dataset),
            "--output",
            output.replace(DATASET, run.dataset),
            "--date",
            str(run.date),
            *arguments,
        ),
    )


def new_token(day: date, number: int) -> str:
    """A name that tells a person which run it is, and that was never used before."""
    return f"event-trends-{day}-{number}-{uuid.uuid4().hex[:12]}"
