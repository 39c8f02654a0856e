"""A day's sums in plain Python, without Spark, which estimates and the job are compared with.

Duplicate records must be removed before. How SDKs sample is described at `Sums`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from shared.sampling.estimates import Sums
from shared.sampling.model import Weight


@dataclass(frozen=True, slots=True)
class Item:
    """The fields of a record that estimates use. ``value`` is the value of the measurement."""

    weight: Weight
    value: float | None = None
    """None if the record does not have the measurement: it is counted, but not in sums."""
    operation_id: str = ""


def figures(items: Iterable[Item]) -> Sums:
    """The sums as the nightly job computes them."""
    items = list(items)
    counts: dict[str | int, dict[float, float]] = {}
    totals: dict[str | int, dict[float, float]] = {}
    for number, item in enumerate(items):
        k, x, operation = item.weight.value, item.value or 0.0, item.operation_id or number
        for levels, contribution in ((counts, 1.0), (totals, x)):
            of = levels.setdefault(operation, {})
            of[k] = of.get(k, 0.0) + contribution
    by_count = [share_of(levels) for levels in counts.values()]
    by_sum = [share_of(levels) for levels in totals.values()]
    pairs = [(item.weight.value, item.value or 0.0) for item in items]
    return Sums(
        records=len(items),
        doubtful=sum(not item.weight.trusted for item in items),
        exact=sum(item.weight.exact for item in items),
        raw_sum=math.fsum([x for _, x in pairs]),
        weight_sum=math.fsum([k for k, _ in pairs]),
        weight_square_sum=math.fsum([k * k for k, _ in pairs]),
        weight_max=max([k for k, _ in pairs], default=0.0),
        adjusted_sum=math.fsum([k * x for k, x in pairs]),
        count_variance=math.fsum([k * (k - 1) for k, _ in pairs]),
        sum_variance=math.fsum([k * (k - 1) * x * x for k, x in pairs]),
        count_shares=math.fsum(by_count),
        sum_shares=math.fsum(by_sum),
        count_share_squares=math.fsum([share * share for share in by_count]),
        sum_share_squares=math.fsum([share * share for share in by_sum]),
    )


def share_of(levels: Mapping[float, float]) -> float:
    """The contribution of an operation to a variance, from the sum at each weight: the
    Horvitz-Thompson estimator for records that share one random number.

    See `shared.sampling.estimates.Sums` for the formula.
    """
    weights = sorted(levels)
    adjusted = variance = 0.0
    for before, weight in reversed(list(zip([1.0, *weights], weights, strict=False))):
        adjusted += weight * levels[weight]
        variance += (1 / before - 1 / weight) * adjusted * adjusted
    return variance


def hash_score(operation_id: str) -> float:
    """The score of Application Insights: hash = 33 · hash + character, from 5381 on, as a signed
    number of 32 bits whose absolute value is divided by the largest one. An id of fewer than 8
    characters is doubled until it has them.
    """
    text = operation_id
    while 0 < len(text) < 8:
        text += text
    value = 5381
    for character in text:
        value = (value * 33 + ord(character)) % 2**32
    return min(value, 2**32 - value, (2**31 - 1)) / (2**31 - 1)
