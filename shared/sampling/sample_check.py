"""Checks a sample of telemetry without any history: its item counts, and what is incomplete.

The ids of kept operations show the sampling rate, and so whether item counts are right. Events that
share operations show whether one of them was lost, from the second date on.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import cached_property
from itertools import groupby, permutations
from operator import itemgetter
from statistics import median

from shared.sampling.baseline import DAYS_MIN
from shared.sampling.companions import CompanionVerdict, Pairs, Share, judge_days, with_companions
from shared.sampling.comparison import DOUBTFUL_MAX, Day
from shared.sampling.kept_ids import OPERATIONS_MIN, Weights, WeightsSeen, weights_seen
from shared.sampling.model import Record, RecordKind, Sender, Weight
from shared.sampling.verdict import LOST, Verdict, VerdictKind, judge_all

EVENTS_MAX = 50
"""Pairs are formed of the events with the most records. The others are named."""
OPERATIONS_MAX = 5_000
"""The operations of a sender and date whose ids are looked at."""
GONE, WHOLE, EXPLAINED = 0.5, 0.05, 0.8
"""Slices explain a loss if they lack half of the event each, the others less than a twentieth, and
those that lack it make up most of the loss."""
SLICE_MIN = 20
ALIKE = 0.1
"""Dates whose factors differ by less than this are told together."""
FEW_DATES = "too few whole dates to judge the count"

Slice = tuple[Sender, int]
"""What sent a record, and the hour in UTC."""


@dataclass(frozen=True, slots=True)
class Incomplete:
    """An event that was lost on a date, and the slices to which the loss is limited."""

    event: str
    verdict: Verdict
    only: str = ""


@dataclass
class SampleCheck:
    """Collects records, each once, and judges them."""

    _keys: set[int] = field(default_factory=set)
    _weights: dict[tuple[str, date], dict[str, float]] = field(default_factory=dict)
    """The item counts of operations, by SDKVersion and date."""
    _operations: dict[date, dict[str, dict[str, Slice]]] = field(default_factory=dict)
    _counts: dict[str, dict[date, Counter[tuple[str, Weight]]]] = field(default_factory=dict)
    """The records of each event, by date, SDKVersion and weight."""
    without_operation: int = 0
    metrics: int = 0

    @property
    def records(self) -> int:
        return len(self._keys)

    @property
    def dates(self) -> Sequence[date]:
        return sorted(self._operations)

    def add(self, record: Record) -> None:
        key = int(record.key[:16], 16)
        if key in self._keys:
            return
        self._keys.add(key)
        if record.kind is RecordKind.METRIC:
            self.metrics += 1
            return
        day, event = record.time.date(), record.name or f"({record.kind} without a name)"
        operations = self._operations.setdefault(day, {})
        sender = record.sender.SDKVersion, record.weight
        self._counts.setdefault(event, {}).setdefault(day, Counter())[sender] += 1
        if not (operation_id := record.operation_id):
            self.without_operation += 1
            return
        events = operations.setdefault(operation_id, {})
        events.setdefault(event, (record.sender, record.time.hour))
        of_sender = self._weights.setdefault((record.sender.SDKVersion, day), {})
        if operation_id in of_sender or len(of_sender) < OPERATIONS_MAX:
            known = of_sender.get(operation_id, math.inf)
            of_sender[operation_id] = min(known, record.item_count)

    def item_counts(self) -> Iterator[str]:
        """A line for each sender, and run of dates on which its item counts are alike."""
        for sdk, of_sdk in groupby(sorted(self.seen), itemgetter(0)):
            runs: list[list[date]] = []
            for _, day in of_sdk:
                alike = runs and _alike(self.seen[sdk, runs[-1][-1]], self.seen[sdk, day])
                runs = [*runs[:-1], [*runs[-1], day]] if alike else [*runs, [day]]
            for days in runs:
                span = f"{days[0]} to {days[-1]}" if len(days) > 1 else str(days[0])
                told = _told([self.seen[sdk, day] for day in days], sdk)
                yield f"{sdk or '(no SDKVersion)'}, {span}: {told}"

    @cached_property
    def seen(self) -> Mapping[tuple[str, date], WeightsSeen]:
        """What the ids show, by SDKVersion and date."""
        return {sender: weights_seen(found) for sender, found in self._weights.items()}

    def incomplete(self) -> Iterator[Incomplete]:
        """The events that were lost, by their companions and, from two weeks on, by their counts.
        The first and the last date may not be whole, so no count is judged on them."""
        dates = self.dates
        common = [event for event, _ in self._most(EVENTS_MAX)]
        seen = judge_days([self._pairs(day, common) for day in dates])
        for event in sorted(self._counts):
            verdicts = self._by_count(event)
            for day, of_day in zip(dates, seen, strict=True):
                found = of_day.get(event)
                verdict = with_companions(verdicts[day], found)
                if verdict.kind in LOST or (found and found.renamed):
                    yield Incomplete(event, verdict, self._only(found) if found else "")

    def not_paired(self) -> Sequence[str]:
        return [event for event, _ in self._most(None)[EVENTS_MAX:]]

    @cached_property
    def across_midnight(self) -> Collection[str]:
        """The operations with records of several dates. They are left out of pairs."""
        both = zip(self.dates, self.dates[1:], strict=False)
        return {
            operation
            for one, other in both
            for operation in self._operations[one].keys() & self._operations[other].keys()
        }

    def _most(self, count: int | None) -> list[tuple[str, int]]:
        totals = {
            event: sum(sum(of_day.values()) for of_day in days.values())
            for event, days in self._counts.items()
        }
        return sorted(totals.items(), key=lambda item: (-item[1], item[0]))[:count]

    def _pairs(self, day: date, common: Iterable[str]) -> Pairs:
        chosen, of, both = frozenset(common), Counter[str](), Counter[tuple[str, str]]()
        for operation, events in self._operations[day].items():
            if operation not in self.across_midnight:
                names = chosen & events.keys()
                of.update(names)
                both.update(permutations(names, 2))
        return {pair: Share(day, of[pair[1]], count) for pair, count in both.items()}

    def _by_count(self, event: str) -> Mapping[date, Verdict]:
        edges = (self.dates[0], self.dates[-1])
        days = [self._day(event, day, excluded=day in edges) for day in self.dates]
        unknown = [Verdict(day, VerdictKind.UNCERTAIN, FEW_DATES) for day in self.dates]
        judged = judge_all(days) if len(days) > DAYS_MIN else unknown
        return {v.day: e if v.day in edges else v for v, e in zip(judged, unknown, strict=True)}

    def _day(self, event: str, day: date, *, excluded: bool) -> Day:
        counts = self._counts[event].get(day, Counter())
        records = sum(counts.values())
        value = sum(n * weight.value for (_, weight), n in counts.items())
        squares = sum(n * weight.value**2 for (_, weight), n in counts.items())
        doubtful = sum(
            n
            for (sdk, weight), n in counts.items()
            if not (weight.trusted or self._proven(sdk, day))
        )
        return Day(
            day,
            value,
            math.sqrt(squares - value),
            value * value / squares if squares else 0.0,
            100 * records / value if value else None,
            trusted=doubtful <= DOUBTFUL_MAX * records,
            exact=all(weight.exact for _, weight in counts),
            excluded=excluded,
        )

    def _proven(self, sdk_version: str, day: date) -> bool:
        seen = self.seen.get((sdk_version, day))
        return seen is not None and seen.proves_weight_1(sdk_version)

    def _only(self, found: CompanionVerdict) -> str:
        """The slices to which a loss is limited, such as: only AppRoleInstance web-3."""
        test, by_name = found.test, defaultdict[str, dict[str, list[bool]]](dict)
        for events in self._operations[test.today.day].values():
            if test.companion in events:
                sender, hour = events[test.companion]
                for name, value in (*sender._asdict().items(), ("hour", f"{hour:02}:00 UTC")):
                    by_name[name].setdefault(value, []).append(test.event in events)
        for name, slices in by_name.items():
            lack = {v: 1 - sum(has) / len(has) / test.usual for v, has in slices.items()}
            few = {v for v, has in slices.items() if len(has) < SLICE_MIN}
            gone = {v for v in lack.keys() - few if lack[v] > GONE}
            others = max((lack[v] for v in lack.keys() - few - gone), default=1.0)
            missing = sum(len(slices[v]) * lack[v] for v in gone) * test.usual
            if gone and others < WHOLE and missing > EXPLAINED * test.lost:
                return f"only {name} {', '.join(sorted(gone))}"
        return ""


def _alike(one: WeightsSeen, other: WeightsSeen) -> bool:
    if (one.weights, one.unsampled, one.score) != (other.weights, other.unsampled, other.score):
        return False
    if math.isnan(one.factor) or math.isnan(other.factor):
        return math.isnan(one.factor) and math.isnan(other.factor)
    return abs(one.factor - other.factor) < ALIKE * one.factor


def _told(run: Sequence[WeightsSeen], sdk_version: str) -> str:
    """What the ids of one sender say on consecutive dates that are alike."""
    seen = run[0]
    match seen.weights:
        case Weights.RIGHT if seen.proves_weight_1(sdk_version):
            return "right: every operation was kept"
        case Weights.RIGHT if seen.unsampled:
            return "right, unless operations were dropped at random and not by their ids"
        case Weights.RIGHT:
            return "right"
        case Weights.UNKNOWN if max(each.operations for each in run) < OPERATIONS_MIN:
            return f"cannot be told from fewer than {OPERATIONS_MIN} operations a day"
        case Weights.UNKNOWN:
            return "cannot be told: the ids fit none of the known samplers at the stated rates"
    stated = f"most say {seen.stated:.3g}; the {seen.score} shows it"
    if math.isnan(seen.factor):
        least = max(each.low for each in run)
        return f"wrong: too low by a factor of at least {least:.1f}, as rates change ({stated})"
    low, high = min(each.low for each in run), max(each.high for each in run)
    kind = "rounded" if seen.weights is Weights.ROUNDED else "wrong"
    factor = median(each.factor for each in run)
    return f"{kind}: too low by a factor of {factor:.2f}, from {low:.2f} to {high:.2f} ({stated})"
