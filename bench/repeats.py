"""Medians of repeated runs.

The compared operations take turns, so that a change in the machine's speed affects them equally.
"""

from __future__ import annotations

import timeit
from collections.abc import Awaitable, Callable, Sequence
from statistics import median


def calls_per_second(
    operations: Sequence[Callable[[], object]], *, repeats: int, calls: int
) -> list[float]:
    """Calls a second of each operation: the median of ``repeats`` turns."""
    seconds = [
        [timeit.timeit(operation, number=calls) for operation in operations] for _ in range(repeats)
    ]
    return [calls / median(turns) for turns in zip(*seconds, strict=True)]


async def medians(runs: Sequence[Callable[[], Awaitable[float]]], *, repeats: int) -> list[float]:
    """The median result of each run over ``repeats`` turns."""
    figures = [[await run() for run in runs] for _ in range(repeats)]
    return [median(turns) for turns in zip(*figures, strict=True)]
