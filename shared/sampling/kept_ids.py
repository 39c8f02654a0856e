"""Reads the sampling rate off the ids of kept operations, and compares it with stated weights.

A sampler keeps an operation if its score, from 0 to 1, is below the sampling rate. The SDKs of
Application Insights and the OpenTelemetry distributions of Azure share one hash, which .NET applies
to the id in capitals; the samplers of OpenTelemetry itself compare bits of the trace id.

Scores below the rate are kept, so the scores of kept operations lie evenly between 0 and the rate,
whatever their records state. The rate is the edge of their histogram. It is not their maximum,
because a few records may be exempt from sampling. An adaptive rate or several rates have no single
edge. But a record's score times its true weight always lies evenly between 0 and 1, so weights can
be checked at any rates.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import median, mode
from typing import Any

import numpy as np

from shared.sampling.weights import ROUNDING

HASH, HASH_OF_CAPITALS = "hash of the id", "hash of the id in capitals"
HASHES = (HASH, HASH_OF_CAPITALS)
START, FACTOR, LENGTH_MIN = 5381, 33, 8
INT_MAX, TWO_32 = 2**31 - 1, 2**32
HALVES = (slice(16), slice(16, None))
TRACE_ID = re.compile(r"[0-9a-f]{32}", re.IGNORECASE)
OPERATIONS_MIN = 200
EDGE_GAIN = 10.0
"""The gain in log-likelihood above which an edge below the maximum is real: chance alone gives less
in 999 of 1,000 samples."""
WITHIN_GAIN = 3.0
"""The edges whose log-likelihood is lower by up to this are in the 95 % interval."""
UNEVEN = 1.95
"""Evenly spread values have a Kolmogorov-Smirnov distance, times √n, above this once in 1,000."""
EXEMPT_MAX = 0.2
LEAST = 1.1
"""At several rates, weights are too low if the factor is at least this."""
WEIGHT_MAX = 10_000.0
"""No sampler keeps less than one of so many: ids with such scores are not random, such as ids of 64
bits that are filled up with zeros."""
BINS, RISE_MAX = 10, 3.5
"""From one of ten bins to the next, values become more by at most so many standard errors if their
density does not rise, as that of kept scores."""
INFORMATIVE = 0.1
"""If fewer records state that they were sampled, even values do not prove their weights."""
ALIKE = 0.1
"""Factors that differ by less than this are alike."""
DENSE_MIN = 50
"""The operations with the lowest scores from which the least factor is computed."""


def hash_scores(ids: Sequence[str]) -> Any:
    """The scores of Application Insights: hash = 33 · hash + character, from 5381 on, as a signed
    number of 32 bits whose absolute value is divided by the largest one. An id of fewer than 8
    characters is doubled until it has them.
    """
    texts = [text if len(text) >= LENGTH_MIN else text * _times(len(text)) for text in ids]
    lengths = np.array([len(text) for text in texts])
    found = np.full(len(texts), START, np.int64)
    for length in np.unique(lengths[lengths > 0]).tolist():
        chosen = np.flatnonzero(lengths == length)
        same = np.array([texts[n] for n in chosen], f"U{length}")
        for column in same.view(np.uint32).reshape(-1, length).T:
            found[chosen] = (found[chosen] * FACTOR + column) % TWO_32
    return np.minimum(np.minimum(found, TWO_32 - found), INT_MAX) / INT_MAX


def _times(length: int) -> int:
    times = 1
    while 0 < length * times < LENGTH_MIN:
        times *= 2
    return times


def scores_of(ids: Sequence[str]) -> Mapping[str, Any]:
    """The scores of each known sampler. Only W3C trace ids have those of OpenTelemetry: of Python
    and Go, Java, .NET, JavaScript, and the threshold of 56 random bits.
    """
    scores = {HASH: hash_scores(ids), HASH_OF_CAPITALS: hash_scores([i.upper() for i in ids])}
    if not all(map(TRACE_ID.fullmatch, ids)):
        return scores
    first, last = (np.array([int(i[at], 16) for i in ids], np.uint64) for at in HALVES)
    half, low = np.uint64(1 << 63), np.uint64(TWO_32 - 1)
    both = first ^ last
    return scores | {
        "last 8 bytes": last / 2**64,
        "last 8 bytes, signed": np.minimum(last, -last) / 2**63,
        "first 8 bytes": first % half / 2**63,
        "all bytes, combined": ((both ^ both >> np.uint64(32)) & low) / TWO_32,
        "last 7 bytes": 1 - (last % np.uint64(1 << 56) + np.uint64(1)) / 2**56,
    }


@dataclass(frozen=True, slots=True)
class Edge:
    """Where the values end, with a 95 % interval. ``exempt`` is the share of operations that were
    kept without regard to the edge."""

    is_rate: bool
    """False if the ids show several rates, or none of this sampler."""
    operations: int
    value: float
    low: float
    high: float
    exempt: float

    @property
    def reaches_one(self) -> bool:
        """Whether this rate dropped nothing. The largest of n even values is below 1 - 10 / n once
        in 20,000 times.
        """
        return self.value * (1 + EDGE_GAIN / self.operations) >= 1


def edge_of(values: Sequence[float]) -> Edge:
    """The edge of the histogram of values above 0, one for each operation.

    Values are even below the edge, and so are the exempt ones up to 1, or up to the largest value.
    The edge is the most likely one of the values themselves, at which half of them lie below.
    """
    count, ordered = len(values), np.sort(np.maximum(values, 1e-12))
    limit = max(1.0, ordered[-1])
    belows = np.arange(count // 2, count)
    edges = ordered[belows - 1]
    gains = np.where(edges < limit, _log_likelihood(belows / count, edges / limit) * count, -np.inf)
    best, below = gains.max(), int(belows[gains.argmax()])
    alone = -count * math.log(ordered[-1] / limit)
    if best - alone < EDGE_GAIN:
        best, below = alone, count
    top, after = ordered[below - 1], ordered[below:]
    within = [top, *edges[gains > best - WITHIN_GAIN]] if len(after) else [top]
    exempt = min(len(after) / count / (1 - top / limit), 1.0) if len(after) else 0.0
    even = _is_even(ordered[:below] / top) and _is_even((after - top) / max(limit - top, 1e-12))
    unbiased = min(top * (1 + 1 / below), *after[:1], math.inf)
    high = max(within) * (1 + WITHIN_GAIN / below)
    figures = map(float, (unbiased, min(within), high, exempt))
    return Edge(bool(even and exempt <= EXEMPT_MAX), count, *figures)


def _log_likelihood(share: Any, edge: Any) -> Any:
    """That of the best mixture of values up to the edge and values up to 1, for each value."""
    with np.errstate(divide="ignore", invalid="ignore"):
        found = share * np.log(share / edge) + (1 - share) * np.log((1 - share) / (1 - edge))
    return np.where(share >= edge, found, -np.inf)


def _is_even(ordered: Any) -> bool:
    count = max(len(ordered), 1)
    distance = np.abs((np.arange(len(ordered)) + 0.5) / count - ordered).max(initial=0.0)
    return bool(distance * math.sqrt(count) + 0.5 / math.sqrt(count) < UNEVEN)


SAMPLES_BY_ID = re.compile(r"^[^:]+:otel\d")
"""Azure's distributions of OpenTelemetry, such as ``py3.11:otel1.25:ext1.6``. Their samplers all
decide by the id. A collector, and OpenCensus, may drop records at random.
"""


class Weights(StrEnum):
    """What the ids of kept operations say about the weights that their records state."""

    RIGHT = "right"
    ROUNDED = "rounded"
    WRONG = "wrong"
    UNKNOWN = "cannot be told"


NOT_RIGHT = (Weights.ROUNDED, Weights.WRONG)


@dataclass(frozen=True, slots=True)
class WeightsSeen:
    """``factor`` is the number by which the stated weights must be multiplied, with a 95 %
    interval. If the rates vary, only ``low`` is known. All are NaN if the weights cannot be told.
    """

    weights: Weights
    operations: int
    stated: float = math.nan
    """The most frequent stated weight."""
    score: str = ""
    """The score by which operations were kept."""
    factor: float = math.nan
    low: float = math.nan
    high: float = math.nan
    unsampled: bool = False
    """Whether no known score of trace ids dropped anything: the rate is 1, unless something else
    sampled."""

    @property
    def is_repaired(self) -> bool:
        """Whether the true weights are known and differ from those that are stated."""
        return self.weights in NOT_RIGHT and not math.isnan(self.factor)

    def told(self, sdk_version: str) -> str:
        """In words, as of a sender of this version."""
        match self.weights:
            case Weights.RIGHT if self.proves_weight_1(sdk_version):
                return "right: every operation was kept"
            case Weights.RIGHT if self.unsampled:
                return "right, unless operations were dropped at random and not by their ids"
            case Weights.RIGHT:
                return "right"
            case Weights.UNKNOWN if self.operations < OPERATIONS_MIN:
                return f"cannot be told from fewer than {OPERATIONS_MIN} operations a day"
            case Weights.UNKNOWN:
                return "cannot be told: the ids fit none of the known samplers at the stated rates"
        stated = f"most say {self.stated:.3g}; the {self.score} shows it"
        if math.isnan(self.factor):
            least = f"at least {self.low:.1f}, as rates change"
            return f"{self.weights}: too low by a factor of {least} ({stated})"
        between = f"{self.factor:.2f}, from {self.low:.2f} to {self.high:.2f}"
        return f"{self.weights}: too low by a factor of {between} ({stated})"

    def is_like(self, other: WeightsSeen) -> bool:
        """Whether both say about the same."""
        if (self.weights, self.unsampled, self.score) != (
            other.weights,
            other.unsampled,
            other.score,
        ):
            return False
        if math.isnan(self.factor) or math.isnan(other.factor):
            return math.isnan(self.factor) and math.isnan(other.factor)
        return abs(self.factor - other.factor) < ALIKE * self.factor

    def proves_weight_1(self, sdk_version: str) -> bool:
        """Whether records of this sender stand for themselves alone."""
        return self.unsampled and SAMPLES_BY_ID.match(sdk_version) is not None


def of_run(days: Sequence[WeightsSeen]) -> WeightsSeen:
    """What consecutive days show that are alike."""
    lows = [day.low for day in days]
    low = max(lows) if math.isnan(days[0].factor) else min(lows)
    factor, high = median(day.factor for day in days), max(day.high for day in days)
    most = max(day.operations for day in days)
    return replace(days[0], operations=most, factor=factor, low=low, high=high)


def weights_seen(operations: Mapping[str, float]) -> WeightsSeen:
    """Checks the stated weights of operations, by their ids.

    Of an operation whose records state several weights, give the smallest. Weights that are too
    high cannot be told from sampling by anything but the id, so they are never called wrong.
    """
    if len(operations) < OPERATIONS_MIN:
        return WeightsSeen(Weights.UNKNOWN, len(operations))
    weights = np.array(list(operations.values()))
    by_score = scores_of(list(operations))
    stated = mode(operations.values())
    dropped = [name for name, scores in by_score.items() if _drops(name, scores)]
    found = [_seen(name, stated, np.sort(each * weights)) for name, each in by_score.items()]
    kinds = (Weights.WRONG, Weights.ROUNDED, Weights.RIGHT, Weights.UNKNOWN)
    first = min(found, key=lambda seen: (kinds.index(seen.weights), math.isnan(seen.factor)))
    sampled = sum(weight > 1 for weight in operations.values())
    if first.weights is Weights.RIGHT and sampled < INFORMATIVE * len(operations) and dropped:
        first = WeightsSeen(Weights.UNKNOWN, len(operations), stated)
    return replace(first, unsampled=not dropped and len(by_score) > len(HASHES))


def _drops(name: str, scores: Any) -> bool:
    """Whether operations may have been dropped by this score. Bits of an id need not be random; if
    they are denser away from 0, no sampler is the cause.
    """
    edge = edge_of(scores)
    return not edge.reaches_one if edge.is_rate else name in HASHES or _falls(scores)


def _seen(name: str, stated: float, values: Any) -> WeightsSeen:
    edge, count = edge_of(values), len(values)
    if edge.is_rate and edge.low <= 1:
        if edge.reaches_one:
            return WeightsSeen(Weights.RIGHT, count, stated, name, 1.0, 1.0, 1.0)
        at = (edge.high, edge.value, edge.low)
        low, factor, high = ((1 - edge.exempt) / each + edge.exempt for each in at)
        if factor * stated > WEIGHT_MAX:
            return WeightsSeen(Weights.UNKNOWN, count, stated)
        rounded = (factor - 1) * stated < ROUNDING
        kind = Weights.ROUNDED if rounded else Weights.WRONG
        return WeightsSeen(kind, count, stated, name, factor, low, high)
    least = _least_factor(values)
    if LEAST <= least <= WEIGHT_MAX / stated and values[-1] <= max(1.0, stated) and _falls(values):
        return WeightsSeen(Weights.WRONG, count, stated, name, low=least)
    return WeightsSeen(Weights.UNKNOWN, count, stated)


def _least_factor(ordered: Any) -> float:
    """The least factor by which weights are too low. At rates rᵢ the density of scores near 0 is
    the mean of 1/rᵢ over kept operations, which is that factor; over any longer range it is less.
    """
    n = np.arange(DENSE_MIN, len(ordered) + 1)
    within = n * (1 - 4 / np.sqrt(n)) / len(ordered) / np.maximum(ordered[DENSE_MIN - 1 :], 1e-12)
    return float(within.max())


def _falls(values: Any) -> bool:
    """Whether the density of values never rises, as if each was kept below some rate."""
    counts, _ = np.histogram(values, BINS, (0.0, np.max(values)))
    return bool((np.diff(counts) <= RISE_MAX * np.sqrt(counts[:-1] + counts[1:] + 1)).all())
