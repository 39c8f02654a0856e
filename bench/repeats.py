"""Medians of repeated runs.

What is compared takes turns, so that a machine that slows down or speeds up meanwhile does so
for all of it.
"""

from __future__ import annotations

import timeit
from collections.abc import Awaitable, Callable, Sequence
from statistics import median


def calls_per_second(
    operations: Sequence[Callable[[], object]], *, repeats: int, calls: int
) -> list[float]:
    """How often a second each operation can be called: the median of ``repeats`` turns."""
    seconds = [
        [timeit.timeit(operation, number=calls) for operation in operations] for _ in range(repeats)
    ]
    return [calls / median(turns) for turns in zip(*seconds, strict=True)]


async def medians(runs: Sequence[Callable[[], Awaitable[float]]], *, repeats: int) -> list[float]:
    """What each run answers: the median of ``repeats`` turns."""
    figures = [[await run() for run in runs] for _ in range(repeats)]
    return [median(turns) for turns in zip(*figures, strict=True)]
