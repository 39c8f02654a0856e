"""Samples of the operations of each date, whose ids show how they were sampled.

A sample has the operations with the smallest hashes, so it is the same in whatever order records
come, and samples can be merged. Each operation counts once, however many records and copies it has.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from shared.sampling.kept_ids import WeightsSeen, weights_seen
from spark_jobs.read.blocks import starts

OPERATIONS_MAX = 5_000
"""The operations of each SDKVersion and date. They tell a rate to 0.02 %."""
NO_LIMIT = np.uint64(np.iinfo(np.uint64).max)

Sample = dict[int, tuple[str, float]]
"""Ids and stated weights by the hash of the id."""


class OperationSamples:
    """Collects samples, by the number of a date and by SDKVersion."""

    def __init__(self) -> None:
        self._samples: dict[tuple[int, str], Sample] = {}
        self._limits: dict[tuple[int, str], np.uint64] = {}

    def add(
        self, groups: Sequence[tuple[int, str]], which: Any, units: Any, ids: Any, stated: Any
    ) -> None:
        """Add records. ``which`` is the index of each record's group, ``units`` has the hashes."""
        order = np.lexsort((stated, units, which))  # the smallest weight of an operation first
        order = order[starts(which[order], units[order])]
        for index in np.unique(which):
            group = groups[index]
            sample, limit = self._samples.setdefault(group, {}), self._limits.get(group, NO_LIMIT)
            chosen = order[(which[order] == index) & (units[order] <= limit)]
            for unit, operation, weight in zip(
                units[chosen].tolist(), ids[chosen].tolist(), stated[chosen].tolist(), strict=True
            ):
                _put(sample, unit, operation, weight)
            if len(sample) > 2 * OPERATIONS_MAX:
                self._samples[group] = smallest(sample)
                self._limits[group] = np.uint64(max(self._samples[group]))

    def rows(self) -> Iterator[tuple[int, str, str]]:
        """Yields each date's number, SDKVersion and sample as a text."""
        for (day, sdk), sample in self._samples.items():
            yield day, sdk, json.dumps([[u, *each] for u, each in smallest(sample).items()])


def smallest(sample: Sample) -> Sample:
    return dict(sorted(sample.items())[:OPERATIONS_MAX])


def _put(sample: Sample, unit: int, operation: str, stated: float) -> None:
    """Of an operation whose records state several weights, the smallest counts."""
    known = sample.get(unit)
    sample[unit] = operation, stated if known is None else min(stated, known[1])


def weights_of(rows: Iterable[Sequence[str]]) -> dict[str, dict[str, WeightsSeen]]:
    """What the ids show, by event date and SDKVersion. ``rows`` has both, and texts of samples."""
    samples: dict[tuple[str, str], Sample] = {}
    for event_date, sdk, text in rows:
        sample = samples.setdefault((event_date, sdk), {})
        for unit, operation, stated in json.loads(text):
            _put(sample, unit, operation, stated)
    found: dict[str, dict[str, WeightsSeen]] = {}
    for (event_date, sdk), sample in sorted(samples.items()):
        found.setdefault(event_date, {})[sdk] = weights_seen(dict(smallest(sample).values()))
    return found
