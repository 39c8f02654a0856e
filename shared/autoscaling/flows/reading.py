"""Reads one source so that nothing that it does affects another one, and remembers when each plan
was read.

The ``read`` of a user's own class may block, so it runs in a daemon thread with an event loop of
its own, at most one for each source.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from inspect import isawaitable
from typing import Any

from shared.autoscaling.errors import CapacityPostponed, ReadFailed
from shared.autoscaling.operating.conditions import CAPACITY_SECONDS_MAX
from shared.autoscaling.sources import PLAN_READ_SECONDS, Reading, Services, Source
from shared.values.calls import DaemonCall, error_text
from shared.values.measurements import MEASURE_MAX, MetricValue, span
from shared.values.redaction import redacted
from shared.values.samples import measure
from shared.values.text import one_line, quoted

SAMPLES_MAX = 1000
TEXT_LENGTH_MAX = 700


@dataclass(frozen=True, slots=True)
class Undated:
    """A value of which no server has stated the time."""

    value: float


Answer = Sequence[MetricValue | Undated] | str
"""The samples of a source, or the reason for having none."""


def is_own(source: Source) -> bool:
    """True if the class of the source is the user's."""
    return not type(source).__module__.startswith("shared.")


class OwnReads:
    def __init__(self) -> None:
        self._running: dict[int, DaemonCall[Any]] = {}

    async def read(self, source: Source, at: Reading, seconds: float) -> Any:
        """What the source returns. Raises TimeoutError, and ReadFailed while an earlier read
        runs."""
        earlier = self._running.get(id(source))
        if earlier is not None and not earlier.finished.done():
            raise ReadFailed(
                "an earlier read has not ended. If the source blocks, give what it calls a time "
                "limit"
            )
        call = DaemonCall(lambda: asyncio.run(_read(source, at, seconds)))
        self._running[id(source)] = call
        if not await call.ends_within(seconds):
            raise TimeoutError
        del self._running[id(source)]
        return call.finished.result()


OWN_READS = OwnReads()


async def _read(source: Source, at: Reading, seconds: float) -> Any:
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            found: Any = source.read(at)
            return await found if isawaitable(found) else found
    except TimeoutError as error:
        if limit.expired():
            raise
        raise ReadFailed("a time limit of the source itself has passed") from error


async def read_source(
    source: Source, services: Services, timeout_seconds: float, own: OwnReads = OWN_READS
) -> Answer:
    """The samples of the source, or in one line why there are none. Raises nothing. A reading that
    was postponed is no failure and has no samples."""
    seconds = timeout_seconds * source.time_limits
    at = Reading(services)
    try:
        if is_own(source):
            found = await own.read(source, at, seconds)
        else:
            async with asyncio.timeout(seconds):
                found = await source.read(at)
        return _samples(found, at.server_time)
    except CapacityPostponed:
        return ()
    except TimeoutError:
        return f"no answer within {seconds:g} s"
    except Exception as error:  # of any class: the source may be the user's own
        return one_line(error_text(error), TEXT_LENGTH_MAX)


def _samples(found: object, server_time: datetime | None) -> Sequence[MetricValue | Undated]:
    """What a source returned, as samples. Raises ReadFailed if it is anything else."""
    if isinstance(found, list | tuple):
        if len(found) > SAMPLES_MAX:
            raise ReadFailed(f"returned {len(found)} samples: must be at most {SAMPLES_MAX}")
        return [_dated(each) for each in found]
    if isinstance(found, MetricValue):
        return (_dated(found),)
    value = _number(found)
    return (Undated(value) if server_time is None else MetricValue(server_time, value),)


def _dated(sample: object) -> MetricValue:
    if not isinstance(sample, MetricValue):
        raise ReadFailed(f"returned {_shown(sample)} among its samples: must be a MetricValue")
    time = sample.time
    if not isinstance(time, datetime) or time.utcoffset() != timedelta(0):
        raise ReadFailed(f"returned a sample of the time {_shown(time)}: must be a time in UTC")
    return replace(sample, value=_number(sample.value))


def _number(value: object) -> float:
    if (known := measure(value)) is None:
        raise ReadFailed(f"returned {_shown(value)}: must be a number from 0 to {MEASURE_MAX:g}")
    return known


def _shown(value: object) -> str:
    return redacted(quoted(value))


NONE = timedelta(0)
NEVER = datetime.min.replace(tzinfo=UTC)
SPENT = "the limit of requests to Azure Resource Manager is used up"


class PlanReadings:
    """The object lives as long as the process. A plan that could not be read is due in the next
    run, after those that were asked for earlier."""

    def __init__(self) -> None:
        self._asked: dict[Hashable, datetime] = {}
        self._since: dict[Hashable, datetime] = {}
        """The time of the last reading, or of the first run that wanted one."""
        self._failing = set[Hashable]()
        self._ran_at = NEVER
        self._ahead = NONE

    def due(self, plans: Iterable[Hashable], now: datetime) -> list[Hashable]:
        """The plans to read now, in the order in which they were last asked for: in the run that is
        nearest to ``PLAN_READ_SECONDS`` after the last reading, and in each run if runs are further
        apart."""
        limit = span(PLAN_READ_SECONDS) - (now - self._ran_at) / 2
        self._ran_at = now
        due = [
            plan
            for plan in plans
            if not NONE <= now - self._since.setdefault(plan, now) < limit
            or plan not in self._asked
            or plan in self._failing
        ]
        return sorted(due, key=lambda plan: self._asked.get(plan, NEVER))

    def note(self, plan: Hashable, answer: Answer, now: datetime, ended: datetime) -> None:
        """Remember an answer of a run. One without samples was postponed, and changes nothing."""
        if isinstance(answer, str):
            self._asked[plan] = now
            self._failing.add(plan)
        elif answer:
            self._asked[plan] = self._since[plan] = now
            self._failing.discard(plan)
            if not isinstance(answer[-1], Undated):
                self._ahead = answer[-1].time - ended

    def server_time(self, now: datetime) -> datetime:
        """The time by the clock of Azure Resource Manager, as the last reading showed it."""
        return now + self._ahead

    def unread(self, plan: Hashable, now: datetime) -> list[str]:
        """Why the plan has not been read for long although nothing failed; empty if it was."""
        since = self._since[plan]
        if plan in self._failing or now - since <= span(CAPACITY_SECONDS_MAX):
            return []
        return [f"the plan has not been read since {since:%H:%M} UTC: {SPENT}"]
