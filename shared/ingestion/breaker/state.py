"""The rules of the circuit breaker: each returns the next value of the shared row, or None. The row
is written only if it is unchanged, so one instance wins, and only the winner announces an opening.

    closed ──trip──▶ open ──probe (after the open interval)──▶ half-open ──successes──▶ closed
                      ▲  ◀──────────a failure───────────────────────┘
    any ──isolate──▶ isolated      open, half-open, isolated ──close (by a person)──▶ closed
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from shared.ingestion.model import LONG_AGO
from shared.values.leases import is_held


class BreakerMode(StrEnum):
    CLOSED = "closed"  # all events are processed
    OPEN = "open"  # no event is processed until the open interval is over
    HALF_OPEN = "half_open"  # one partition probes with a few events
    ISOLATED = "isolated"  # an operator stopped processing; only a person can close it


@dataclass(frozen=True, slots=True)
class BreakerTimes:
    """In seconds. Each failed probe, and each trip within ``calm_seconds`` after a successful one,
    makes the open interval ``break_factor`` times as long, up to ``break_seconds_max``."""

    break_seconds: float = 30
    break_factor: float = 2
    break_seconds_max: float = 900
    calm_seconds: float = 300
    probe_events: int = 10
    probe_seconds: float = 60
    """After this time without a success, another instance may take over the probe."""
    probe_call_seconds_max: float = 600
    """A holder that is still processing a batch keeps the probe until this time after its start."""
    announce_seconds: float = 60
    """After this time, another instance may announce the incident."""


@dataclass(frozen=True, slots=True)
class Probe:
    """Who may probe which partition until when, and how many events must still succeed."""

    holder: str
    partition_id: str
    until: datetime
    events_left: int


@dataclass(frozen=True, slots=True)
class Breaker:
    """The shared row of one breaker. ``epoch`` counts incidents: openings of a closed breaker, and
    isolations. A link closes the breaker only in its incident."""

    mode: BreakerMode = BreakerMode.CLOSED
    epoch: int = 0
    changed_at: datetime = LONG_AGO
    reason: str = ""
    breaks: int = 0
    """The number of consecutive open intervals."""
    retry_at: datetime | None = None
    """When the open interval ends; None while the breaker is closed or isolated."""
    probe: Probe | None = None
    closed_by: str = ""
    announced_epoch: int = 0
    """The latest incident that was announced."""
    announce_at: datetime | None = None
    """When another instance may announce the incident if it is still unannounced."""


# --- opening ----------------------------------------------------------------------------------


def trip(breaker: Breaker, reason: str, now: datetime, times: BreakerTimes) -> Breaker | None:
    """Open a closed breaker. The instance that writes the result announces the opening."""
    if breaker.mode is not BreakerMode.CLOSED:
        return None
    calm = now - breaker.changed_at >= timedelta(seconds=times.calm_seconds)
    incident = replace(
        breaker,
        epoch=breaker.epoch + 1,
        breaks=0 if calm else breaker.breaks,
        announce_at=now + timedelta(seconds=times.announce_seconds),
    )
    return _opened(incident, reason, now, times)


def isolate(breaker: Breaker, reason: str, now: datetime, times: BreakerTimes) -> Breaker | None:
    """Stop processing until a person closes the breaker. This is announced like an opening."""
    if breaker.mode is BreakerMode.ISOLATED:
        return None
    announce_at = now + timedelta(seconds=times.announce_seconds)
    incident = replace(breaker, epoch=breaker.epoch + 1, announce_at=announce_at)
    return _changed(incident, BreakerMode.ISOLATED, reason, now)


def _changed(
    breaker: Breaker, mode: BreakerMode, reason: str, now: datetime, closed_by: str = ""
) -> Breaker:
    return replace(
        breaker,
        mode=mode,
        changed_at=now,
        reason=reason,
        retry_at=None,
        probe=None,
        closed_by=closed_by,
    )


def break_seconds(breaks: int, times: BreakerTimes) -> float:
    """The length of the open interval after ``breaks`` consecutive ones."""
    exponent = min(breaks, 100)  # a larger exponent only reaches the cap again, or overflows
    return min(times.break_seconds * times.break_factor**exponent, times.break_seconds_max)


def _opened(breaker: Breaker, reason: str, now: datetime, times: BreakerTimes) -> Breaker:
    wait = timedelta(seconds=break_seconds(breaker.breaks, times))
    opened = _changed(breaker, BreakerMode.OPEN, reason, now)
    return replace(opened, breaks=breaker.breaks + 1, retry_at=now + wait)


# --- probing ----------------------------------------------------------------------------------


def start_probe(
    breaker: Breaker, holder: str, partition_id: str, now: datetime, times: BreakerTimes
) -> Breaker | None:
    """Give the probe to ``holder`` if the open interval is over or another holder's time has run
    out. Successes of earlier holders count, because a quiet hub may have too few events for one."""
    if not _probe_is_due(breaker, now, times):
        return None
    events_left = breaker.probe.events_left if breaker.probe else times.probe_events
    probe = Probe(holder, partition_id, _until(now, times), events_left)
    reason = f"{holder} tries partition {partition_id}"
    return replace(breaker, mode=BreakerMode.HALF_OPEN, changed_at=now, reason=reason, probe=probe)


def _probe_is_due(breaker: Breaker, now: datetime, times: BreakerTimes) -> bool:
    if breaker.mode is BreakerMode.OPEN:
        length = break_seconds(breaker.breaks - 1, times)
        return breaker.retry_at is not None and not _lasts(breaker.retry_at, length, now)
    if breaker.mode is BreakerMode.HALF_OPEN:
        return breaker.probe is None or not _lasts(breaker.probe.until, times.probe_seconds, now)
    return False


def _lasts(end: datetime, length_seconds: float, now: datetime) -> bool:
    return is_held(end - now, timedelta(seconds=length_seconds))


def keep_probe(breaker: Breaker, holder: str, now: datetime, times: BreakerTimes) -> Breaker | None:
    """Extend the probe of a holder that is processing a batch, up to ``probe_call_seconds_max``."""
    if not _holds(breaker, holder, now) or breaker.probe is None:
        return None
    longest = breaker.changed_at + timedelta(seconds=times.probe_call_seconds_max)
    until = min(_until(now, times), longest)
    if until <= breaker.probe.until:
        return None
    return replace(breaker, probe=replace(breaker.probe, until=until))


def report_probe(
    breaker: Breaker,
    holder: str,
    successes: int,
    failure: str | None,
    now: datetime,
    times: BreakerTimes,
) -> Breaker | None:
    """Apply the result of the holder's events: a failure opens the breaker again, enough successes
    close it. None if the probe was lost, or if no new event was tried."""
    if not _holds(breaker, holder, now) or breaker.probe is None:
        return None
    if failure is not None:
        return _opened(breaker, f"the probe failed: {failure}", now, times)
    if successes <= 0:
        return None
    events_left = breaker.probe.events_left - successes
    if events_left <= 0:
        return _changed(breaker, BreakerMode.CLOSED, "the probe succeeded", now, holder)
    return replace(
        breaker, probe=replace(breaker.probe, events_left=events_left, until=_until(now, times))
    )


def _holds(breaker: Breaker, holder: str, now: datetime) -> bool:
    probe = breaker.probe
    if breaker.mode is not BreakerMode.HALF_OPEN or probe is None:
        return False
    return probe.holder == holder and now < probe.until


def _until(now: datetime, times: BreakerTimes) -> datetime:
    return now + timedelta(seconds=times.probe_seconds)


# --- closing ----------------------------------------------------------------------------------


def close(breaker: Breaker, epoch: int, closed_by: str, now: datetime) -> Breaker | None:
    """Close the breaker on behalf of a person. None if it is closed, or in another incident."""
    if breaker.mode is BreakerMode.CLOSED or breaker.epoch != epoch:
        return None
    reason = f"closed by {closed_by}"
    return replace(_changed(breaker, BreakerMode.CLOSED, reason, now, closed_by), breaks=0)


# --- announcing -------------------------------------------------------------------------------


def take_announcement(breaker: Breaker, now: datetime, times: BreakerTimes) -> Breaker | None:
    """Take over the announcement of an incident if another instance has not made it in time."""
    if breaker.announced_epoch >= breaker.epoch or breaker.announce_at is None:
        return None
    if _lasts(breaker.announce_at, times.announce_seconds, now):
        return None
    return replace(breaker, announce_at=now + timedelta(seconds=times.announce_seconds))


def unannounced(breaker: Breaker) -> Iterator[Breaker]:
    """The incidents to announce, in order, also those that ended before they were announced."""
    missed = "this earlier incident ended before it could be announced"
    for epoch in range(breaker.announced_epoch + 1, breaker.epoch):
        yield replace(breaker, epoch=epoch, reason=missed)
    yield breaker


def mark_announced(breaker: Breaker, epoch: int) -> Breaker | None:
    if breaker.announced_epoch >= epoch:
        return None
    return replace(breaker, announced_epoch=epoch)


# --- admitting events -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Admission:
    """How many events of a batch may be processed now (None: all of them), and why."""

    events_max: int | None
    reason: str

    @property
    def is_held(self) -> bool:
        return self.events_max == 0


def admission(breaker: Breaker, instance: str, partition_id: str, now: datetime) -> Admission:
    """How many events the breaker admits: all, a few of the partition that probes, or none."""
    if breaker.mode is BreakerMode.CLOSED:
        return Admission(None, "closed")
    probe = breaker.probe
    if probe and _holds(breaker, instance, now) and probe.partition_id == partition_id:
        return Admission(probe.events_left, "probing")
    return Admission(0, f"{breaker.mode}: {breaker.reason}")
