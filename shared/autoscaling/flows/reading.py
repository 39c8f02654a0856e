"""Reads one source so that nothing that it does affects another one.

The ``read`` of a user's own class may block, so it runs in a daemon thread with an event loop of
its own, at most one for each source.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from inspect import isawaitable
from typing import Any

from shared.autoscaling.errors import CapacityPostponed, ReadFailed
from shared.autoscaling.sources import Reading, Services, Source
from shared.values.calls import DaemonCall, error_text
from shared.values.measurements import MEASURE_MAX, MetricValue
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
