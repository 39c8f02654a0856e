"""What the operations of a date show: which item counts are right, and what events they share."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from shared.sampling.companions import Pairs, PairTest, Share
from shared.sampling.estimates import NORMAL_975
from shared.sampling.kept_ids import NOT_RIGHT, OPERATIONS_MIN, WeightsSeen
from shared.sampling.model import RecordKind
from shared.sampling.series import Series

OF, BOTH, KEPT, LEFT_OUT, HOUR = "of", "both", "kept", "left out", "hour"
AWAY = "sampled away"
EVENTS_MAX, SLICES_MAX = 50, 50
"""The most events of a date whose operations are compared, and the most slices of a pair."""
TOGETHER_MIN = 0.05
"""A pair is kept if at least this share of the operations of the rarer event have both."""
GONE, WHOLE, EXPLAINED = 0.5, 0.05, 0.8
"""Slices explain a loss if they lack half of the event each, the others less than a twentieth, and
those that lack it make up most of the loss."""
SLICE_MIN = 20
AWAY_MAX = 0.005
"""A pair is not compared if sampling dropped more of the event, of the companion's operations. SDKs
may sample events and requests apart, as Azure Functions and ASP.NET do."""

LOGS = " (events and traces)"

Event: TypeAlias = tuple[str, ...]
"""The kind, name and dimensions of a series."""
Counts = Counter[tuple[Any, ...]]
"""Numbers of operations, which can be added: by ``(KEPT,)`` and ``(LEFT_OUT,)``, by ``(OF, event)``
and ``(BOTH, event, companion)``, and by ``(OF, event, companion, name, value)`` of a slice, with
``BOTH`` for those of them that have the event, too. A slice is what sent the companion, or when.
``(AWAY, event, companion)`` estimates in how many the event was sampled away, by its weights.
"""


@dataclass(frozen=True, slots=True)
class DayOperations:
    """The operations of one event date. ``weights`` are what their ids show, by ``sampler_of``."""

    counts: Counts = field(default_factory=Counter)
    weights: Mapping[str, WeightsSeen] = field(default_factory=dict)

    @property
    def left_out(self) -> float:
        """The share of operations that may have records elsewhere, so they are not compared."""
        return self.counts[LEFT_OUT,] / max(self.counts[LEFT_OUT,] + self.counts[KEPT,], 1)

    @property
    def factors(self) -> Mapping[str, float]:
        """By ``sampler_of``, the number by which weights that state no rate must be multiplied. It
        is NaN if they are wrong and the number is not known. Weights of which nothing is known are
        left out."""
        wrong = {sdk: s.factor for sdk, s in self.weights.items() if s.weights in NOT_RIGHT}
        proven = {sdk: 1.0 for sdk, s in self.weights.items() if s.proves_weight_1(sdk)}
        many = {name for name, s in self.weights.items() if s.operations >= OPERATIONS_MIN}
        logs = {f"{sdk.removesuffix(LOGS)}{LOGS}" for sdk in proven} - many
        # Events and traces are sampled as requests are, or not at all.
        return {**dict.fromkeys(logs, 1.0), **wrong, **proven}

    @property
    def factor_error(self) -> float:
        """The largest relative standard error of the factors."""
        wide = [(s.high - s.low) / s.factor for s in self.weights.values() if s.is_repaired]
        return max(wide, default=0.0) / (2 * NORMAL_975)


def sampler_of(sdk_version: str, kind: str) -> str:
    """What decides which records of a sender are kept. SDKs for OpenTelemetry may keep all events
    and traces, whatever they drop of requests and dependencies."""
    return f"{sdk_version}{LOGS}" if kind in (RecordKind.EVENT, RecordKind.TRACE) else sdk_version


def encoded(counts: Counts) -> str:
    """A short text, which is equal for equal counts."""
    names: dict[Any, int] = {}
    rows = [
        [*(names.setdefault(part, len(names)) for part in key), count]
        for key, count in sorted(counts.items(), key=lambda item: repr(item[0]))
    ]
    return json.dumps([list(names), rows], separators=(",", ":"))


def decoded(text: str) -> Counts:
    parts, rows = json.loads(text)
    names = [tuple(part) if isinstance(part, list) else part for part in parts]
    return Counter({tuple(names[n] for n in key): count for *key, count in rows})


def bounded(counts: Counts) -> Counts:
    """The counts of the most frequent events, of pairs that are often together, and of the largest
    slices."""
    of = {key[1]: count for key, count in counts.items() if key[0] == OF and len(key) == 2}
    events = set(sorted(of, key=lambda event: (-of[event], event))[:EVENTS_MAX])
    slices: dict[tuple[Any, ...], list[tuple[int, str]]] = defaultdict(list)
    for (what, *key), count in counts.items():
        if what == OF and len(key) > 1:
            slices[tuple(key[:-1])].append((-count, key[-1]))
    largest = {key: {v for _, v in sorted(each)[:SLICES_MAX]} for key, each in slices.items()}

    def fits(what: str, *key: Any) -> bool:
        pair = key[:2]
        if not events.issuperset(pair):
            return False
        if len(key) > 2:
            return key[-1] in largest[key[:-1]]
        return what == OF or counts[BOTH, *key] >= TOGETHER_MIN * min(map(of.__getitem__, pair))

    return Counter({key: n for key, n in counts.items() if len(key) == 1 or fits(*key)})


def pairs_of(counts: Counts) -> Pairs:
    """The shares of one event's operations that have another, too: of none, if they are sampled
    apart."""
    of = {key[1]: count for key, count in counts.items() if key[0] == OF and len(key) == 2}
    series = {event: Series(event[0], event[1], event[2:]) for event in of}
    pairs = [(key[1:], count) for key, count in counts.items() if key[0] == BOTH and len(key) == 3]
    apart = {pair for pair, _ in pairs if counts[AWAY, *pair] > AWAY_MAX * of[pair[1]]}
    return {
        (series[event], series[companion]): Share(0, 0)
        if (event, companion) in apart
        else Share(of[companion], count)
        for (event, companion), count in pairs
    }


def limited_to(test: PairTest, counts: Counts) -> str:
    """The slices to which a loss is limited, such as: only AppRoleInstance web-3; else empty.

    The slices may be those of another companion. Its usual share is that of today before the fall.
    """
    event = (test.event.kind, test.event.event, *test.event.dims)
    of: dict[tuple[Any, ...], dict[str, int]] = defaultdict(dict)
    for (what, *key), count in counts.items():
        if what == OF and key[0] == event and len(key) > 1:
            of[tuple(key[:-1])][key[-1]] = count
    found = list[tuple[int, str]]()
    for pair, sizes in of.items():
        both = {value: counts[BOTH, *pair, value] for value in sizes}
        usual = sum(both.values()) / sum(sizes.values()) / max(1 - test.fall, 1e-9)
        lack = {v: 1 - both[v] / n / usual for v, n in sizes.items() if n >= SLICE_MIN and usual}
        gone = sorted(v for v, share in lack.items() if share > GONE)
        others = max((share for v, share in lack.items() if v not in gone), default=1.0)
        missing = sum(sizes[v] * lack[v] for v in gone) * usual
        lost = usual * sum(sizes.values()) - sum(both.values())
        if gone and others < WHOLE and missing > EXPLAINED * lost:
            found.append((len(gone), f"only {pair[-1]} {', '.join(gone)}"))
    return min(found, default=(0, ""))[1]
