"""What a proof checks, and the evidence of each check. Pure: it knows only what was seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby

from local.prove.script import AGE_LIMIT, MAXIMUM, MINIMUM, START_UP, Fault, Script, Step
from shared.autoscaling.deciding.decide import EntryKind, LogEntry
from shared.values.measurements import CAPACITY_METRIC
from shared.values.text import listed

NAMED_MAX = 5
SINCE_FAULT = START_UP + 2
"""A message that becomes late within so many minutes after a fault is late because of it."""
NOTICED_MINUTES = 1.5
"""How long it takes, whatever the speed, until the app has read the plan again and has said so."""
DELAYS = (Fault.STOPPED, Fault.NO_ROLE, Fault.RESTART, Fault.THROTTLED)
"""Faults that keep the app or the workers from doing their part."""
SHOWS: Mapping[Fault, tuple[tuple[EntryKind, ...], str]] = {
    Fault.POISON: ((EntryKind.POISON,), ""),
    Fault.BY_HAND: ((EntryKind.MANUAL_CHANGE,), ""),
    Fault.NO_ROLE: ((EntryKind.FAILED, EntryKind.DEFERRED), "403"),
    Fault.THROTTLED: ((EntryKind.DEFERRED,), "429"),
}
"""The entries of the decision log by which an operator sees a fault, and a part of their reason."""
UNREAD = f"no sample of {CAPACITY_METRIC}"
"""The condition that shows a missing role if no order has met it."""
ALERTS: Mapping[Fault, tuple[str, ...]] = {
    Fault.POISON: ("poison",),
    Fault.NO_ROLE: ("action-failed", "source-failed"),
}
"""The alerts in Azure of which at least one must fire."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One look, at a minute of the script. ``oldest`` is the age of the oldest message that waits,
    in minutes."""

    minute: float
    capacity: int
    waiting: int
    oldest: float


@dataclass(frozen=True, slots=True)
class Messages:
    """``left`` and ``dead`` are what the subscription still has at the end."""

    sent: int
    completed: Counter[str]
    left: int
    dead: int


@dataclass(frozen=True, slots=True)
class Events:
    """Events as they were sent, and as the app has accounted for them."""

    sent: int
    poison: int
    accounted: int
    dead: int
    gaps: int


@dataclass(frozen=True, slots=True)
class Seen:
    """All that was seen of one run. ``puts`` are the capacities that Resource Manager accepted from
    the app, each None where it is not recorded. ``alarms`` are the alerts that fired. Either is
    None if it cannot be read there."""

    script: Script
    samples: Sequence[Sample]
    began: datetime
    speed: float
    entries: Sequence[LogEntry]
    puts: Sequence[int | None] | None
    messages: Messages
    events: Events
    broken: Sequence[str]
    """What the safety rules of the backtest found."""
    last_epoch: int
    conditions: Sequence[str] = ()
    alarms: Sequence[str] | None = None
    failed_looks: int = 0
    resumed: float | None = None
    """The minute at which the app decided again after its restart."""

    def minute(self, time: datetime) -> float:
        return (time - self.began).total_seconds() / 60 * self.speed


@dataclass(frozen=True, slots=True)
class Check:
    """``holds`` is None if it cannot be said here."""

    name: str
    holds: bool | None
    evidence: str


def repeated(entries: Iterable[LogEntry], epochs: int, accepted: int) -> bool:
    """Whether Resource Manager carried out more changes than were decided, or sent once more."""
    return accepted > epochs + sum(each.kind is EntryKind.REOPENED for each in entries)


def unordered(entries: Iterable[LogEntry], accepted: Sequence[int | None]) -> list[int]:
    """The capacities that were set although none was decided, or in another order."""
    orders = iter([each.desired for each in entries if each.applies])
    changes = [c for c, before in zip(accepted, [None, *accepted], strict=False) if c != before]
    return [each for each in changes if each is not None and each not in orders]


def checks(seen: Seen) -> list[Check]:
    return [
        _safe(seen),
        _once(seen),
        _messages(seen.messages),
        _events(seen.events),
        _age(seen),
        _reasons(seen),
        *(_shown(seen, step) for step in seen.script.faults),
        _quiet(seen),
        _alerts(seen),
    ]


def _safe(seen: Seen) -> Check:
    lowest, highest = (of((each.capacity for each in seen.samples), default=0) for of in (min, max))
    said = (
        f"{len(seen.samples)} looks at the plan ({seen.failed_looks} failed) showed {lowest} to "
        f"{highest} instances (limits {MINIMUM} to {MAXIMUM}); {_orders(seen)} orders"
    )
    name = "No order outside the limits, without data, against a rate limit, or while paused"
    return Check(name, not seen.broken and bool(seen.samples), _with(said, seen.broken))


def _once(seen: Seen) -> Check:
    name = "No order is carried out twice"
    if seen.puts is None:
        return Check(name, None, "the changes of the plan could not be read")
    epochs = seen.last_epoch - sum(e.kind is EntryKind.MANUAL_CHANGE for e in seen.entries)
    said = f"{epochs} orders were decided, and Resource Manager carried out {len(seen.puts)}"
    wrong = [
        f"{each} instances, which was not decided" for each in unordered(seen.entries, seen.puts)
    ]
    twice = repeated(seen.entries, epochs, len(seen.puts))
    return Check(name, not (twice or wrong), _with(said, wrong))


def _messages(found: Messages) -> Check:
    twice = sum(count - 1 for count in found.completed.values())
    said = (
        f"{found.sent:,} sent, {len(found.completed):,} completed, {twice} of them twice, "
        f"{found.left:,} waiting, {found.dead} dead-lettered"
    )
    whole = found.sent == len(found.completed) + found.left + found.dead
    return Check("Every message is accounted for", whole and not twice, said)


def _events(found: Events) -> Check:
    said = (
        f"{found.sent} sent, {found.poison} of them poison; {found.accounted} accounted for, "
        f"{found.dead} as dead letters, {found.gaps} gone"
    )
    whole = (found.accounted, found.dead, found.gaps) == (found.sent, found.poison, 0)
    return Check("Every event is accounted for", whole, said)


def _age(seen: Seen) -> Check:
    """Late messages are allowed if they became late by a fault, or with the plan at its maximum."""
    runs = [list(run) for late, run in groupby(seen.samples, key=_is_late) if late]
    bad = [run for run in runs if not _is_excused(run, seen.script.faults)]
    worst = max((each.oldest for each in seen.samples), default=0.0)
    said = (
        f"the oldest message waited {worst:.1f} min at most (limit {AGE_LIMIT}); times that "
        f"messages were late: {len(runs)}, by a fault or at the maximum: {len(runs) - len(bad)}"
    )
    problems = [f"late from minute {run[0].minute:.0f} to {run[-1].minute:.0f}" for run in bad]
    name = "Messages are younger than the age limit where the plan allows it"
    return Check(name, bool(seen.samples) and not bad, _with(said, problems))


def _is_late(sample: Sample) -> bool:
    return sample.oldest > AGE_LIMIT


def _is_excused(run: Sequence[Sample], faults: Iterable[Step]) -> bool:
    began = run[0].minute
    by_fault = any(
        each.fault in DELAYS and each.start <= began <= each.end + SINCE_FAULT for each in faults
    )
    return by_fault or all(each.capacity >= MAXIMUM for each in run)


def _reasons(seen: Seen) -> Check:
    decided = [each for each in seen.entries if each.kind is EntryKind.DECISION]
    bare = [f"{each.time:%H:%M:%S}" for each in decided if not each.reason]
    bare += [f"{e.time:%H:%M:%S}, no evidence" for e in decided if e.applies and not e.evidence]
    said = f"{len(decided)} decisions in the log, {_orders(seen)} of them orders"
    return Check("Every decision has its reason", bool(decided) and not bare, _with(said, bare))


def _shown(seen: Seen, step: Step) -> Check:
    name = f"The app shows and survives: {step.fault}"
    if step.fault is Fault.RESTART:
        said = "it did not decide again" if seen.resumed is None else (
            f"it decided again after {seen.resumed - step.start:.1f} min"
        )  # fmt: skip
        return Check(name, seen.resumed is not None, said)
    if step.fault is Fault.STOPPED:
        ended = [s for s in seen.samples if s.minute > step.end and not s.waiting]
        said = f"the backlog was empty again at minute {ended[0].minute:.0f}" if ended else (
            "the backlog was never empty again"
        )  # fmt: skip
        return Check(name, bool(ended), said)
    found = list(_entries(seen, step))
    said = "; ".join(f"{each.kind}: {each.reason}" for each in found[:1]) or "nothing in the log"
    unread = [each for each in seen.conditions if UNREAD in each]
    if not found and step.fault is Fault.NO_ROLE and unread:
        return Check(name, True, unread[0])
    if not found and step.fault is Fault.THROTTLED:
        return Check(name, None, "no order met it")
    return Check(
        name, bool(found), f"entries in the log: {len(found)}, such as {said}" if found else said
    )


def _entries(seen: Seen, step: Step) -> Iterator[LogEntry]:
    kinds, part = SHOWS[step.fault]
    until = step.end + SINCE_FAULT + NOTICED_MINUTES * seen.speed
    for each in seen.entries:
        is_near = step.start <= seen.minute(each.time) <= until
        if is_near and each.kind in kinds and part in each.reason:
            yield each


def _quiet(seen: Seen) -> Check:
    last = seen.samples[-1] if seen.samples else None
    minutes = seen.script.minutes - seen.script.quiet_from
    shown = last.capacity if last else "not known"
    said = f"instances after {minutes:.0f} min without messages: {shown}"
    name = "A quiet time brings the plan to its minimum"
    return Check(name, last is not None and last.capacity == MINIMUM, said)


def _alerts(seen: Seen) -> Check:
    name = "The alerts fired for what was broken"
    if seen.alarms is None:
        return Check(name, None, "alerts are read in Azure only")
    broken = {step.fault for step in seen.script.faults}
    missing = [
        str(fault)
        for fault, names in ALERTS.items()
        if fault in broken and not any(n in fired for n in names for fired in seen.alarms)
    ]
    said = f"fired: {', '.join(sorted(set(seen.alarms))) or 'none'}"
    return Check(name, not missing, _with(said, [f"none for: {each}" for each in missing]))


def _orders(seen: Seen) -> int:
    return sum(each.applies for each in seen.entries)


def _with(said: str, problems: Sequence[str]) -> str:
    return f"{said}. Broken: {listed(problems, NAMED_MAX, '; ')}" if problems else said
