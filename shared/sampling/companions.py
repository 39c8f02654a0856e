"""Finds lost events by the events that share their operations.

Sampling keeps or drops whole operations. So the share of an event's operations that contain another
event is the same before and after sampling, at any rate and in any traffic. If the share falls, the
other event was lost, or the operations have changed. This needs no control, no weights and no
forecast. It is blind where whole operations are lost; there the verdict on the count goes on.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median, median_high
from typing import Any, TypeAlias

from shared.sampling.verdict import Verdict, VerdictKind

MEMORY_DAYS = 28
OPERATIONS_MIN = 100
SHARE_MIN = 0.3
"""An event is a companion of another if at least this share of its operations contain the other."""
COMPANIONS_MAX = 3
"""An event is judged by the companion with the least noise. The others must agree."""
FALSE_DISCOVERIES = 0.005
"""The chance of any wrong loss among all events of a day on which nothing was lost."""
USUAL_NOISE, USUAL_NOISE_DAYS = 0.008, 8
"""The relative noise of shares from day to day, if that of all events is not larger. For the noise
of one event, it is worth as many days."""
NOISE_MIN = 0.002
SHORT_DAYS, SHORT_FALL_MIN = 7, 0.07
"""With fewer days of history, the noise is hardly known, so only a fall above this share counts."""
UNUSUAL = 4.0
RENAMED_MIN = 0.8
"""If new events fill at least this share of the gap, the event may have a new name."""
AGREE_MIN = 0.5
"""A companion disagrees if it shows less than this part of the loss, although it would see all."""


@dataclass(frozen=True, slots=True)
class Share:
    """Kept operations of one day that contain the companion, and those that have the event, too."""

    of: int
    both: int

    @property
    def value(self) -> float:
        """Half an operation is added, so that the logarithm exists."""
        return (self.both + 0.5) / (self.of + 1)

    @property
    def variance(self) -> float:
        """That of the logarithm of the share, by chance."""
        return (1 - self.value) / self.value / (self.of + 1)


Event: TypeAlias = Any
"""A series, or any other name of an event that can be sorted and shown."""
Pairs = Mapping[tuple[Event, Event], Share]
"""The shares of one day by event and companion. A pair without common operations may be missing, if
the companion has another pair."""
Companions = Mapping[Event, Sequence[Event]]


@dataclass(frozen=True, slots=True)
class PairTest:
    """The share today beside the usual one. ``chance`` is the probability of such a fall if nothing
    was lost. ``lost`` is the number of kept operations without the event, with a 95 % interval.
    """

    event: Event
    companion: Event
    today: Share
    usual: float
    usual_low: float
    usual_high: float
    error: float
    chance: float
    days: int

    @property
    def fall(self) -> float:
        return 1 - self.today.value / self.usual

    @property
    def lost(self) -> float:
        return self.usual * self.today.of - self.today.both

    @property
    def lost_between(self) -> tuple[float, float]:
        reach = 1.96 * self.error
        low, high = (self.usual * math.exp(at) * self.today.of for at in (-reach, reach))
        return max(low - self.today.both, 0.0), high - self.today.both

    @property
    def text(self) -> str:
        """Such as: of 1,904 kept operations with checkout, 71 % have OrderConfirmed; 94 to 96 %
        in the last 28 days: about 480 of those lost (430 to 530)."""
        low, high = self.lost_between
        now, least, most = (100 * v for v in (self.today.value, self.usual_low, self.usual_high))
        return (
            f"of {self.today.of:,} kept operations with {self.companion}, {now:.3g} % have"
            f" {self.event}; {least:.3g} to {most:.3g} % in the last {self.days} days: about"
            f" {self.lost:,.0f} of those lost ({low:,.0f} to {high:,.0f})"
        )


@dataclass(frozen=True, slots=True)
class CompanionVerdict:
    """Whether the share of an event fell, by its best companion. ``doubt`` says why a fall need not
    be a loss."""

    test: PairTest
    fallen: bool
    doubt: str = ""
    renamed: bool = False

    @property
    def lost(self) -> bool:
        return self.fallen and not self.doubt


def companions_of(history: Sequence[Pairs]) -> Companions:
    """The companions of each event, those with the least noise first."""
    shares: dict[tuple[Event, Event], list[Share]] = {}
    for day in history[-MEMORY_DAYS:]:
        for pair, share in day.items():
            shares.setdefault(pair, []).append(share)
    found: dict[Event, list[tuple[float, Event]]] = {}
    for (event, companion), present in shares.items():
        days = [share for share in present if share.of >= OPERATIONS_MIN]
        often = len(present) > len(history[-MEMORY_DAYS:]) / 2
        if often and days and median(share.value for share in days) >= SHARE_MIN:
            noise = _noise(days)[1] + median(share.variance for share in days)
            found.setdefault(event, []).append((noise, companion))
    return {event: [c for _, c in sorted(each)[:COMPANIONS_MAX]] for event, each in found.items()}


def _common_noise(history: Sequence[Pairs], companions: Companions) -> float:
    """The variance between days that the shares of events have in common: the upper median of all.

    The noise of one event is estimated from few days, and the companion whose noise seems to be the
    least is chosen. So it would be underestimated, if it was not drawn to that of the others.
    """
    found = list[float]()
    for event, (best, *_) in companions.items():
        days = [day[event, best] for day in history if (event, best) in day]
        known = [share for share in days if share.of >= OPERATIONS_MIN]
        if len(known) > 1:
            found.append(_noise(known, 0.0, 0)[1])
    return max(median_high(found or [0.0]), USUAL_NOISE**2)


def tested(
    event: Event, companion: Event, today: Share, before: Sequence[Share], common_noise: float
) -> PairTest | None:
    """Compare the share with that of earlier days, given their noise; None if it has no basis.

    The error adds the noise between days, the chance of today's operations at the usual share, and
    the error of the usual share itself. The noise is estimated, so the test is Student's t.
    """
    known = [s for s in before[-MEMORY_DAYS:] if s.of >= OPERATIONS_MIN]
    if not known or today.of < OPERATIONS_MIN:
        return None
    centre, noise = _noise(known, common_noise)
    usual = math.exp(centre)
    expected = Share(today.of, round(usual * today.of))
    own = sum(1 / (noise + share.variance) for share in known)
    error = math.sqrt(noise + expected.variance + 1 / own)
    score = (math.log(today.value) - centre) / error
    chance = _lower_tail(score, USUAL_NOISE_DAYS + len(known) - 1)
    if len(known) < SHORT_DAYS and today.value > usual * (1 - SHORT_FALL_MIN):
        chance = 1.0
    values = [share.value for share in known]
    return PairTest(
        event, companion, today, usual, min(values), max(values), error, chance, len(known)
    )


def _noise(
    days: Sequence[Share], common: float = USUAL_NOISE**2, worth_days: int = USUAL_NOISE_DAYS
) -> tuple[float, float]:
    """The usual logarithm of the share, and the variance between days that chance does not explain.

    Days far off, such as those of a loss, are cut to what is usual.
    """
    logs = [math.log(share.value) for share in days]
    centre = median(logs)
    spread = 1.4826 * median(abs(log - centre) for log in logs)
    cuts = [UNUSUAL * math.hypot(max(spread, NOISE_MIN), math.sqrt(s.variance)) for s in days]
    cut = [min(max(v - centre, -c), c) for v, c in zip(logs, cuts, strict=True)]
    weights = [1 / (USUAL_NOISE**2 + share.variance) for share in days]
    centre += sum(w * v for w, v in zip(weights, cut, strict=True)) / sum(weights)
    cut = [v - (centre - median(logs)) for v in cut]
    beyond = sum(v * v - share.variance for v, share in zip(cut, days, strict=True))
    noise = (worth_days * common + beyond) / (worth_days + len(days) - 1)
    return centre, max(noise, NOISE_MIN**2)


def _lower_tail(t: float, degrees: float) -> float:
    """P(T < t) of Student's t, by Wallace's approximation (1959), accurate to a few percent."""
    z = math.sqrt(degrees * math.log1p(t * t / degrees)) * (8 * degrees + 1) / (8 * degrees + 3)
    return math.erfc(math.copysign(z, -t) / math.sqrt(2)) / 2


def judge_companions(today: Pairs, history: Sequence[Pairs]) -> Mapping[Event, CompanionVerdict]:
    """A verdict for each event that has a companion. ``history`` has earlier days, oldest first.

    The best companion of each event is tested. Over all events of the day, Benjamini and Hochberg's
    procedure (1995) bounds the false discoveries. A fall is doubted if another companion shows
    much less of it, or if events that are new have taken the place of this one.
    """
    earlier = history[-MEMORY_DAYS:]
    ofs = {companion: share for (_, companion), share in today.items()}
    tests: dict[Event, list[PairTest]] = {}
    found = companions_of(earlier)
    common_noise = _common_noise(earlier, found)
    for event, companions in found.items():
        for companion in [each for each in companions if each in ofs]:
            share = today.get((event, companion)) or replace(ofs[companion], both=0)
            before = [day[event, companion] for day in earlier if (event, companion) in day]
            if test := tested(event, companion, share, before, common_noise):
                tests.setdefault(event, []).append(test)
    limit = _limit(each[0].chance for each in tests.values())
    present = Counter(event for day in earlier for event in {event for event, _ in day})
    known = {event for event, days in present.items() if days > len(earlier) / 2}
    return {
        event: _verdict(first, others, today, known)
        if first.chance <= limit
        else CompanionVerdict(first, fallen=False)
        for event, (first, *others) in tests.items()
    }


def judge_days(days: Sequence[Pairs]) -> list[Mapping[Event, CompanionVerdict]]:
    """The verdicts of each day, oldest first. A day on which an event was lost does not become
    usual for it, until the loss has lasted for four weeks.
    """
    verdicts: list[Mapping[Event, CompanionVerdict]] = []
    history: list[Pairs] = []
    lasting = Counter[Event]()
    for day in days:
        of_day = judge_companions(day, history)
        lasting = Counter({e: lasting[e] + 1 for e, seen in of_day.items() if seen.fallen})
        left_out = {event for event, count in lasting.items() if count <= MEMORY_DAYS}
        history.append(
            {p: replace(s, of=0, both=0) if p[0] in left_out else s for p, s in day.items()}
        )
        verdicts.append(of_day)
    return verdicts


def _limit(chances: Iterable[float]) -> float:
    ordered = sorted(chances)
    limits = [FALSE_DISCOVERIES * (n + 1) / len(ordered) for n in range(len(ordered))]
    passed = [limit for c, limit in zip(ordered, limits, strict=True) if c <= limit]
    return max(passed, default=-1.0)


def _verdict(
    first: PairTest, others: Sequence[PairTest], today: Pairs, known: Collection[Event]
) -> CompanionVerdict:
    """The verdict on an event whose share fell."""
    new = {
        event: share.both
        for (event, companion), share in today.items()
        if companion == first.companion and event not in known
    }
    name = max(new, key=lambda event: (new[event], event), default="")
    if name and new[name] >= RENAMED_MIN * first.lost and first.fall >= RENAMED_MIN:
        doubt = f"but {name} is new and takes its place, so it may have a new name"
        return CompanionVerdict(first, True, doubt, renamed=True)
    for other in others:
        surely = other.usual * (1 - math.exp(-3 * other.error))
        if other.fall < AGREE_MIN * first.fall and surely < AGREE_MIN * first.fall:
            doubt = (
                f"but operations with {other.companion} have it about as often as before, so those"
                f" with {first.companion} have changed"
            )
            return CompanionVerdict(first, True, doubt)
    return CompanionVerdict(first, fallen=True)


def with_companions(verdict: Verdict, seen: CompanionVerdict, only: str = "") -> Verdict:
    """One verdict from that on the count and that of the companions, with the evidence of both.

    A fall of the share is a loss, whatever the count says. An unchanged share leaves the verdict as
    it is, because whole operations may be lost, and says so. ``only`` names the slices to which the
    loss is limited.
    """
    test = seen.test
    evidence = {
        **verdict.evidence,
        "companion": str(test.companion),
        "companion_operations": test.today.of,
        "companion_share": test.today.value,
        "usual_companion_share": test.usual,
        "companion_chance": test.chance,
        "companion_fallen": seen.fallen and (seen.lost or seen.renamed),
        **({"only": only} if only else {}),
    }
    kind, reason = verdict.kind, verdict.reason
    if seen.lost:
        kind = VerdictKind.EVENTS_LOST
        reason = f"{only and f'{only}: '}{test.text}; by its count: {reason}"
    elif seen.fallen:
        kind = VerdictKind.UNCERTAIN if seen.renamed else kind
        reason = f"{test.text}, {seen.doubt}; by its count: {reason}"
    elif kind is VerdictKind.EVENTS_LOST:
        reason = f"{reason}; operations that were kept have it as usual, so whole ones are missing"
    return replace(verdict, kind=kind, reason=reason, evidence=evidence)
