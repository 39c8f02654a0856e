"""The values of a trace in the order of time, in UTC, and on whole steps."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import MAXYEAR, MINYEAR, UTC, datetime, timedelta
from itertools import pairwise
from statistics import median_low, multimode
from zoneinfo import ZoneInfo

from backtest.traces.columns import Column, quoted
from backtest.traces.files import Refused
from backtest.traces.values import is_absent, order_of_dates, reader_of_numbers, time_of

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
STEP_MIN = SECOND
STEP_MAX = timedelta(minutes=30)
JITTER_SHARE = 0.25
"""How far a row may be from its place, as a share of the step."""
ARRIVALS_MAX = 1e12
TRACE_MINUTES_MAX = 2 * 366 * 24 * 60
TOTAL = "no value falls, as in a running total. If it is one, export the increase in each step"
TOTAL_ROWS_MIN = 30
"""Arrivals in that many steps fall at some time."""
NUMBER = "Write the number of items in that step, such as 19"
ISO = "Write ISO 8601: 1995-07-11T04:00:00Z"
AUTUMN = "as local times do at the clock change in autumn"
SPRING = "as in local times at the clock change in spring. Name their zone with --time-zone"
STEPS = "Give rows from 1 s to 30 min apart, such as the number of events in each minute"
SUNDAY = 6
AS_UTC = "Export the times in UTC"
IN_UTC = f"{AS_UTC}, or name their time zone, such as --time-zone Europe/Berlin"
NOT_IN_ZONE = "Name the zone of the file, or leave out --time-zone if its times are UTC"
Notices = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Sample:
    place: str
    time: datetime
    arrivals: float | None


@dataclass(frozen=True, slots=True)
class Missing:
    """Steps without a value. `zeros` tells whether other rows state that nothing arrived."""

    steps: int
    places: int
    share: float
    smallest: float
    zeros: bool
    text: str


def samples_of(column: Column, zone: ZoneInfo | None) -> tuple[list[Sample], Notices]:
    """All values in the order of time, and what was assumed about the times."""
    day_first, sure = order_of_dates([time for _, time, _ in column.cells])
    texts = [value for _, _, value in column.cells if not is_absent(value)]
    try:
        number_of = reader_of_numbers(texts, comma_decimal=column.comma_decimal)
    except ValueError as error:
        mark = "comma" if "," in str(error) else "point"
        what = f"the {mark} in {quoted(str(error))} may mark decimals or thousands"
        raise Refused(None, what, "Export the numbers with a point and without marks") from None
    samples = []
    for at, time, value in column.cells:
        where = f"{column.place} {at}"
        when = _time(where, time, day_first=day_first)
        count = None if is_absent(value) else _arrivals(where, value, number_of)
        samples.append(Sample(where, when, count))
    if all(sample.arrivals is None for sample in samples):
        what = "arrivals '' is not a number, and no row has one"
        raise Refused(samples[0].place, what, NUMBER)
    notices: Notices = ()
    if not sure:
        notices = ("dates such as 02/11/2026 are read as month/day",)
    samples, told = _in_order(samples, column, zone)
    counts = [one.arrivals for one in samples if one.arrivals is not None]
    if len(counts) >= TOTAL_ROWS_MIN and counts == sorted(counts) and counts[0] < counts[-1]:
        told = (*told, TOTAL)
    return samples, (*notices, *told)


def _in_order(
    samples: list[Sample], column: Column, zone: ZoneInfo | None
) -> tuple[list[Sample], Notices]:
    """In UTC and in the order of time, and what was assumed."""
    naive = [sample for sample in samples if sample.time.tzinfo is None]
    if naive and len(naive) < len(samples):
        raise Refused(naive[0].place, "the time has no offset, others have one", IN_UTC)
    if samples[0].time > samples[-1].time:
        samples = samples[::-1]
    notices: Notices = ()
    local = bool(naive) and "utc" not in column.time.casefold()
    if local:
        samples, notices = _located(samples, naive[0].place, zone)
    samples = [_in_utc(sample) for sample in samples]
    falls = sum(after.time < before.time for before, after in pairwise(samples))
    if falls:
        notices = (*notices, f"rows sorted by time: {falls} were before the row above")
        samples.sort(key=lambda one: one.time)
    _check_unique(samples, (AS_UTC if zone else IN_UTC) if local else "")
    return samples, notices


def _located(
    samples: list[Sample], first: str, zone: ZoneInfo | None
) -> tuple[list[Sample], Notices]:
    """Times without an offset, in their time zone. An hour is there twice in autumn."""
    told = f"{len(samples)} times without an offset, the first on {first}: read as"
    if zone is not None:
        return _in_zone(samples, zone), (f"{told} {zone.key}",)
    falls = [(a, b) for a, b in pairwise(samples) if b.time < a.time]
    if len(falls) == 1 and falls[0][0].time - falls[0][1].time <= HOUR:
        before, after = falls[0]
        what = f"the times go back from {_iso(before.time)} to {_iso(after.time)}, {AUTUMN}"
        raise Refused(after.place, what, IN_UTC)
    skips = [b for a, b in pairwise(samples) if HOUR < b.time - a.time <= HOUR + STEP_MAX]
    spring = [
        f"; the hour before {_iso(one.time)} is missing, {SPRING}"
        for one in skips
        if one.time.weekday() == SUNDAY and one.time.hour <= 3
    ]
    return samples, (f"{told} UTC{''.join(spring[:1])}",)


def _in_zone(samples: Sequence[Sample], zone: ZoneInfo) -> list[Sample]:
    """What follows the first of two equal hours belongs to the second one."""
    found: list[Sample] = []
    for sample in samples:
        local = sample.time.replace(tzinfo=zone)
        if local.astimezone(UTC).astimezone(zone).replace(tzinfo=None) != sample.time:
            what = f"{_iso(sample.time)} does not exist in {zone.key}: clocks were set forward"
            raise Refused(sample.place, what, NOT_IN_ZONE)
        late = replace(sample, time=local.replace(fold=1))
        again = bool(found) and local.astimezone(UTC) <= found[-1].time.astimezone(UTC)
        found.append(late if again else replace(sample, time=local))
    return found


def _in_utc(sample: Sample) -> Sample:
    return replace(
        sample, time=sample.time.replace(tzinfo=sample.time.tzinfo or UTC).astimezone(UTC)
    )


def _time(place: str, text: str, *, day_first: bool) -> datetime:
    try:
        time = time_of(text, day_first=day_first)
    except (ValueError, OverflowError):
        raise Refused(place, f"{quoted(text)} is not a time", ISO) from None
    if not MINYEAR < time.year < MAXYEAR:
        what = f"{quoted(text)} is at the end of the calendar, where no time can be added"
        raise Refused(place, what, f"Use years from {MINYEAR + 1} to {MAXYEAR - 1}")
    return time


def _arrivals(place: str, text: str, number_of: Callable[[str], float]) -> float:
    what, fix = f"arrivals {quoted(text)} is", NUMBER
    try:
        value = number_of(text)
    except ValueError:
        raise Refused(place, f"{what} not a number", fix) from None
    if not math.isfinite(value):
        raise Refused(place, f"{what} not a finite number", fix)
    if value < 0:
        raise Refused(place, f"{what} negative", fix)
    if value > ARRIVALS_MAX:
        raise Refused(place, f"{what} above {ARRIVALS_MAX:.0e}", "Check the unit")
    return value


def _check_unique(samples: Sequence[Sample], fix_of_local: str) -> None:
    again = [(a, b) for a, b in pairwise(samples) if a.time == b.time]
    if not again:
        return
    before, sample = again[0]
    if fix_of_local and HOUR / 2 <= again[-1][0].time - before.time < HOUR:
        what = f"an hour from {_iso(sample.time)} is there twice, {AUTUMN}"
        raise Refused(sample.place, what, fix_of_local)
    what = f"the time {_iso(sample.time)} is already on {before.place}"
    raise Refused(sample.place, what, "Add up the two rows, or delete one")


def on_steps(
    samples: Sequence[Sample],
) -> tuple[timedelta, list[Sample], Notices]:
    """The step, and the samples moved to whole steps if they are some seconds off."""
    if len(samples) == 1:
        told = "the file has one row, which is read as the arrivals of one minute"
        return MINUTE, list(samples), (told,)
    spans = [after.time - before.time for before, after in pairwise(samples)]
    step, moved = _usual_step(spans), 0
    if not STEP_MIN <= step <= STEP_MAX:
        what = f"the rows are {spoken(step)} apart"
        raise Refused(samples[1].place, what, STEPS)
    _check_length(samples, step)
    start = samples[0].time
    if any(span % step for span in spans):
        start = _whole(start, step)
    placed: list[Sample] = []
    for sample in samples:
        time = start + round((sample.time - start) / step) * step
        if abs(sample.time - time) > JITTER_SHARE * step or (placed and placed[-1].time == time):
            span = spoken(sample.time - samples[max(len(placed) - 1, 0)].time)
            what = (
                f"{_iso(sample.time)} is {span} after the row before, where most rows are "
                f"{spoken(step)} apart"
            )
            raise Refused(sample.place, what, "Keep one step in the whole file")
        moved += time != sample.time
        placed.append(replace(sample, time=time))
    told = f"{moved} times are not on whole steps of {spoken(step)}: moved to the nearest one"
    return step, placed, (told,) if moved else ()


def _usual_step(spans: Sequence[timedelta]) -> timedelta:
    """The most common span if all are multiples of it. Otherwise times are irregular, or many
    steps are missing: then what all spans have in common, in whole minutes.
    """
    step = min(multimode(spans))
    if all(span % step == timedelta() for span in spans):
        return step
    middle = median_low(spans)
    if middle < STEP_MIN / 2:
        return middle
    unit = MINUTE if middle >= 0.75 * MINUTE else 5 * SECOND if middle >= 5 * SECOND else SECOND
    steps = [max(1, round(span / unit)) for span in spans]
    usual, times = Counter(steps).most_common(1)[0]
    return (usual if times >= 0.9 * len(steps) else math.gcd(*steps)) * unit


def _whole(start: datetime, step: timedelta) -> datetime:
    """The nearest whole minute, or second of shorter steps, if the start is some seconds off."""
    unit = MINUTE if step >= MINUTE else SECOND
    past = (start - datetime(1, 1, 1, tzinfo=UTC)) % unit
    nearest = start - past + (unit if past > unit / 2 else timedelta())
    return nearest if abs(nearest - start) <= step / 10 else start


def missing_of(samples: Sequence[Sample], step: timedelta) -> Missing | None:
    """How many steps have no row or no value, and in how many places of the file."""
    total = round((samples[-1].time - samples[0].time) / step) + 1
    values = [one.arrivals for one in samples if one.arrivals is not None]
    steps, places, first = total - len(values), 0, ""
    if not steps:
        return None
    open_place = False
    for before, sample in pairwise((samples[0], *samples)):
        skipped = sample.time - before.time > step
        if skipped or sample.arrivals is None:
            places += skipped or not open_place
            first = first or (f"before {sample.place}" if skipped else f"on {sample.place}")
        open_place = sample.arrivals is None
    text = f"{steps} missing steps of {spoken(step)}, the first {first}"
    return Missing(steps, places, steps / total, min(values), 0 in values, text)


def _check_length(samples: Sequence[Sample], step: timedelta) -> None:
    minutes = (samples[-1].time + step - samples[0].time) / MINUTE
    if minutes > TRACE_MINUTES_MAX:
        length = f"{minutes:,.0f} minutes, more than {TRACE_MINUTES_MAX:,}"
        what = f"{_iso(samples[-1].time)} ends a trace of {length}"
        raise Refused(samples[-1].place, what, "Check the year, or cut the file")


def spoken(span: timedelta) -> str:
    seconds = span.total_seconds()
    return f"{seconds / 60:g} min" if seconds >= 60 else f"{seconds:g} s"


def _iso(time: datetime) -> str:
    return time.isoformat().replace("+00:00", "Z")
