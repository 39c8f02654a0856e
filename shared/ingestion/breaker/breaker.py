"""The circuit breaker of one consumer: a row that all instances share, and how it may change.

Each rule gives the row's next value, or None where it must not change. Whoever wants a change
writes it under the version that was read; of many that want the same, one wins, and the others
read again and find that nothing is left to do. So the winner alone has an opening to announce;
should it crash before that is done, another takes over after a while.

    closed ──trip──▶ open ──probe (its break is over)──▶ half open ──enough successes──▶ closed
                      ▲  ◀──────────a failure────────────────┘
    any ──isolate──▶ isolated        open, half open, isolated ──close (a person)──▶ closed
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum

LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


class BreakerMode(StrEnum):
    CLOSED = "closed"  # events flow
    OPEN = "open"  # nothing flows until the break is over
    HALF_OPEN = "half_open"  # one partition tries a few events
    ISOLATED = "isolated"  # a person stopped it; only a person starts it again


@dataclass(frozen=True, slots=True)
class BreakerTimes:
    """Breaks grow by ``break_factor`` with each failure in a row, up to ``break_seconds_max``.

    A breaker that trips again within ``calm_seconds`` of a successful probe goes on growing.
    """

    break_seconds: float = 30
    break_factor: float = 2
    break_seconds_max: float = 900
    calm_seconds: float = 300
    probe_events: int = 10
    probe_seconds: float = 60
    """The probe's holder has so long until its first success, and from one to the next; then
    another may take over."""
    probe_call_seconds_max: float = 600
    """While a batch of it is at work the holder keeps the probe for longer, but no longer than so
    from when it began: a handler may take its time, and must not hang for ever."""
    announce_seconds: float = 60
    """Who announces an opening has so long; then another may do it."""


@dataclass(frozen=True, slots=True)
class Probe:
    """Who may try, on which partition, until when, and how many events must still succeed."""

    holder: str
    partition_id: str
    until: datetime
    events_left: int


@dataclass(frozen=True, slots=True)
class Breaker:
    """The shared row. ``epoch`` counts incidents: it grows when a closed breaker opens and when a
    person isolates, so that no older approval ends that. A failed probe is of the same incident."""

    mode: BreakerMode = BreakerMode.CLOSED
    epoch: int = 0
    changed_at: datetime = LONG_AGO
    reason: str = ""
    breaks: int = 0
    """Breaks in a row; how long the next one is depends on it."""
    retry_at: datetime | None = None
    """When the break is over; None while closed or isolated."""
    probe: Probe | None = None
    closed_by: str = ""
    announced_epoch: int = 0
    """The latest incident that people were told of."""
    announce_at: datetime | None = None
    """When another may announce the incident, should it still be to be announced then."""


# --- what makes it open -----------------------------------------------------------------------


def trip(breaker: Breaker, reason: str, now: datetime, times: BreakerTimes) -> Breaker | None:
    """Open a closed breaker. Whoever writes it is the one to announce it to people."""
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
    """Stop until a person closes it, whatever the calls do meanwhile. Announced like an opening."""
    if breaker.mode is BreakerMode.ISOLATED:
        return None
    return replace(
        breaker,
        mode=BreakerMode.ISOLATED,
        epoch=breaker.epoch + 1,
        changed_at=now,
        reason=reason,
        retry_at=None,
        probe=None,
        closed_by="",
        announce_at=now + timedelta(seconds=times.announce_seconds),
    )


def break_seconds(breaks: int, times: BreakerTimes) -> float:
    """How long the break is after so many others in a row."""
    exponent = min(breaks, 100)  # beyond it any factor has reached its cap, or overflows
    return min(times.break_seconds * times.break_factor**exponent, times.break_seconds_max)


def _opened(breaker: Breaker, reason: str, now: datetime, times: BreakerTimes) -> Breaker:
    wait = timedelta(seconds=break_seconds(breaker.breaks, times))
    return replace(
        breaker,
        mode=BreakerMode.OPEN,
        changed_at=now,
        reason=reason,
        breaks=breaker.breaks + 1,
        retry_at=now + wait,
        probe=None,
        closed_by="",
    )


# --- the probe --------------------------------------------------------------------------------


def start_probe(
    breaker: Breaker, holder: str, partition_id: str, now: datetime, times: BreakerTimes
) -> Breaker | None:
    """Let ``holder`` try: once the break is over, or when another holder has gone silent.

    What succeeded since the break counts, whoever's it was: where little comes, no holder alone
    might ever see enough.
    """
    if not _probe_is_due(breaker, now, times):
        return None
    left = breaker.probe.events_left if breaker.probe else times.probe_events
    probe = Probe(holder, partition_id, _until(now, times), left)
    reason = f"{holder} tries partition {partition_id}"
    return replace(breaker, mode=BreakerMode.HALF_OPEN, changed_at=now, reason=reason, probe=probe)


def _probe_is_due(breaker: Breaker, now: datetime, times: BreakerTimes) -> bool:
    if breaker.mode is BreakerMode.OPEN:
        length = break_seconds(breaker.breaks - 1, times)
        return breaker.retry_at is not None and _is_over(breaker.retry_at, length, now)
    if breaker.mode is BreakerMode.HALF_OPEN:
        return breaker.probe is None or _is_over(breaker.probe.until, times.probe_seconds, now)
    return False


def _is_over(end: datetime, length_seconds: float, now: datetime) -> bool:
    """Whether a period has ended. One with more than twice its length still to go was begun before
    the store's clock was set back, and is over too: nobody has to wait for that clock."""
    return not now < end <= now + timedelta(seconds=2 * length_seconds)


def keep_probe(breaker: Breaker, holder: str, now: datetime, times: BreakerTimes) -> Breaker | None:
    """Give the holder, which is at work on it, as long again as it had when it began."""
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
    """What the holder's events did: a failure opens again, enough successes close.

    A report of fewer events than are left keeps the probe. None from who no longer holds it, and
    where nothing was tried: events that came again prove nothing, so the time to try goes on to
    run out, and then another partition may have what is new.
    """
    if not _holds(breaker, holder, now) or breaker.probe is None:
        return None
    if failure is not None:
        return _opened(breaker, f"the probe failed: {failure}", now, times)
    if successes <= 0:
        return None
    left = breaker.probe.events_left - successes
    if left <= 0:
        return _closed(breaker, "the probe succeeded", holder, now)
    return replace(
        breaker, probe=replace(breaker.probe, events_left=left, until=_until(now, times))
    )


def _holds(breaker: Breaker, holder: str, now: datetime) -> bool:
    probe = breaker.probe
    if breaker.mode is not BreakerMode.HALF_OPEN or probe is None:
        return False
    return probe.holder == holder and now < probe.until


def _until(now: datetime, times: BreakerTimes) -> datetime:
    return now + timedelta(seconds=times.probe_seconds)


# --- what makes it close ----------------------------------------------------------------------


def close(breaker: Breaker, epoch: int, who: str, now: datetime) -> Breaker | None:
    """A person closes the incident ``epoch``. None where it is over, or is another one by now."""
    if breaker.mode is BreakerMode.CLOSED or breaker.epoch != epoch:
        return None
    return replace(_closed(breaker, f"closed by {who}", who, now), breaks=0)


def _closed(breaker: Breaker, reason: str, who: str, now: datetime) -> Breaker:
    return replace(
        breaker,
        mode=BreakerMode.CLOSED,
        changed_at=now,
        reason=reason,
        retry_at=None,
        probe=None,
        closed_by=who,
    )


# --- telling people ---------------------------------------------------------------------------


def take_announcement(breaker: Breaker, now: datetime, times: BreakerTimes) -> Breaker | None:
    """Take over an announcement that its announcer has not finished in time."""
    if breaker.announced_epoch >= breaker.epoch or breaker.announce_at is None:
        return None
    if not _is_over(breaker.announce_at, times.announce_seconds, now):
        return None
    return replace(breaker, announce_at=now + timedelta(seconds=times.announce_seconds))


def unannounced(breaker: Breaker) -> Iterator[Breaker]:
    """The breaker as people are to be told of it: of its incident, and before that of each that was
    over before anybody could be told."""
    missed = "it had opened before that, which was over before anybody could be told"
    for epoch in range(breaker.announced_epoch + 1, breaker.epoch):
        yield replace(breaker, epoch=epoch, reason=missed)
    yield breaker


def mark_announced(breaker: Breaker, epoch: int) -> Breaker | None:
    """People were told of the incident ``epoch``."""
    if breaker.announced_epoch >= epoch:
        return None
    return replace(breaker, announced_epoch=epoch)


# --- what it means for a batch ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Admission:
    """How many of a batch's events may be processed now (None: all), and why."""

    events_max: int | None
    reason: str

    @property
    def shut(self) -> bool:
        return self.events_max == 0


def admission(breaker: Breaker, instance: str, partition_id: str, now: datetime) -> Admission:
    """What the breaker lets through: all, the first few of the probed partition, or nothing."""
    if breaker.mode is BreakerMode.CLOSED:
        return Admission(None, "closed")
    probe = breaker.probe
    if probe and _holds(breaker, instance, now) and probe.partition_id == partition_id:
        return Admission(probe.events_left, "probing")
    return Admission(0, f"{breaker.mode}: {breaker.reason}")
