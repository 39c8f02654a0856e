"""The data behind the page and its JSON, and the operations on resources."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypedDict
from uuid import uuid4

from pydantic import ConfigDict, Field

from shared.autoscaling.deciding.decide import EntryKind, LogEntry
from shared.autoscaling.deciding.stretches import Stretch, course_of
from shared.autoscaling.declaring import PLAN_CAPACITY_MAX, Mode
from shared.autoscaling.errors import StateUnreadable
from shared.autoscaling.flows import override as control
from shared.autoscaling.flows import status
from shared.autoscaling.flows.common import find
from shared.autoscaling.learning.backlogs import AGE_AT_MOST, age_minutes
from shared.autoscaling.operating import presenting
from shared.autoscaling.operating.conditions import DEPLOY, conditions, state_unreadable
from shared.autoscaling.operating.overrides import Change, duration
from shared.autoscaling.operating.presenting import (
    DecisionEntry,
    History,
    HistoryPoint,
    ResourceStatus,
    ResourceUnreadable,
)
from shared.autoscaling.policy import Resource
from shared.autoscaling.ports import Snapshot, StateStore
from shared.autoscaling.state import Override
from shared.notifications.conditions import LastingCondition
from shared.values.durations import SHORT_PATTERN
from shared.values.news import Severity
from shared.values.samples import format_time
from shared.values.text import DateText
from shared.web.given import Given, Line, Name, Time
from shared.web.http import Refused, Reply, Request, author
from shared.web.operation import operation

POINTS_MAX = 360
DETAILED_HOURS = 6
"""The curves of a longer time are read as short courses, and of the entries only changes."""
SEARCHED_MAX = 2_000
"""The most entries that are searched at a time among all decisions of a longer time."""
LATER = timedelta(hours=1)
"""How long after a change its outcome is looked for."""
ROWS_MAX = 25
CARDS_MAX = 2
"""If there are more resources, a table shows them, and a card only the one that is chosen."""
MANY = 20
"""If there are more resources, what was read of each is shown for up to ``SEEN_SECONDS_MAX``."""
SEEN_SECONDS_MAX = 30
NEVER = (0.0, None)


@dataclass(frozen=True, slots=True)
class Shown:
    """The content of a part of the page, and what is wrong."""

    content: Any
    conditions: Sequence[LastingCondition] = ()


Panel = Callable[[], Awaitable[Shown]]


@dataclass(frozen=True, slots=True)
class Board:
    resources: Mapping[str, Resource]
    store: StateStore
    at_maximum_minutes: float
    panels: Mapping[str, Panel] = field(default_factory=dict)
    free: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(status.AT_ONCE_MAX))
    price: float | None = None
    """What an instance-hour costs."""
    seen: dict[str, tuple[float, Shown]] = field(default_factory=dict)
    """Of many resources, what was read of each within the last seconds, and when."""


def cached(panel: Panel, seconds: float, clock: Callable[[], float] = time.monotonic) -> Panel:
    """The panel, which is read again only if its last content is ``seconds`` old."""
    answers: list[tuple[float, Shown]] = []

    async def answer() -> Shown:
        now = clock()
        if not answers or now - answers[-1][0] >= seconds:
            answers[:] = [(now, await panel())]
        return answers[-1][1]

    return answer


class OfResource(Given):
    name: Name = Field(description="the name of the resource in `scaling_rules.py`")


class Newest(Given):
    limit: int = Field(50, ge=1, le=status.ENTRIES_MAX, description="the most entries")
    since: Time | None = Field(None, description="no entries from before this time")
    before: Time | None = Field(None, description="only entries from before this time")
    changes: bool = Field(False, description="without decisions that request nothing")
    text: str = Field("", max_length=100, description="only entries with this text")


class HistoryHours(Given):
    hours: float = Field(3, ge=0.01, le=336, description="how far back")
    before: Time | None = Field(None, description="the end, if it is not now")


class HistoryWanted(HistoryHours):
    """The range of the charts, and which entries are listed below them."""

    kind: str = Field("", max_length=20, description="`every`: list all; or only this kind")
    guard: str = Field("", max_length=50, description="list only what this guard limited")
    text: str = Field("", max_length=100, description="list only entries with this text")
    until: Time | None = Field(None, description="list only entries from before this time")

    @property
    def filter(self) -> presenting.RowFilter:
        return presenting.RowFilter(self.kind, self.guard, self.text, self.until)


class OverrideGiven(Given):
    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "floor": 3,
                "freeze_scale_in": True,
                "reason": "sale",
                "for": "2h",
                "by": "anna",
            }
        }
    )
    mode: Mode | None = Field(None, strict=False, description="the mode of the resource")
    exact: int | None = Field(
        None,
        ge=0,
        le=PLAN_CAPACITY_MAX,
        description="exactly this number of instances, without waiting for a cooldown",
    )
    floor: int | None = Field(
        None, ge=0, le=PLAN_CAPACITY_MAX, description="at least this number of instances"
    )
    freeze_scale_in: bool = Field(False, description="`true` prevents scale-in")
    reason: Line | None = Field(None, description="the reason, for the decision log")
    lasts: str | None = Field(
        None,
        alias="for",
        min_length=1,
        max_length=30,
        pattern=SHORT_PATTERN,
        examples=["90m", "2h", "1d12h"],
        description="the duration, such as `90m`, `2h` or `1d12h`, at most `366d`; without it the "
        "override lasts until it is cleared",
    )
    by: Line | None = Field(
        None,
        description="the author; if the Function App requires people to sign in, the name of the "
        "signed-in person is used instead",
    )
    clear: bool = Field(
        False, description="`true` removes the override; the only other field allowed is `by`"
    )

    def change(self, by: str, change_id: str) -> Change:
        """The change that an operator asks for. Raises Refused or OverrideRefused."""
        if self.clear:
            given = self.model_dump(by_alias=True, exclude={"by", "clear"})
            if others := [name for name, value in given.items() if value]:
                raise Refused(400, f"{others[0]}: is not allowed beside clear, which takes only by")
            return Change(None, by, change_id)
        override = Override(
            mode=self.mode,
            reason=(self.reason or "").strip(),
            freeze_scale_in=self.freeze_scale_in,
            floor=self.floor,
            exact=self.exact,
        )
        return Change(override, by, change_id, duration(self.lasts) if self.lasts else None)


class OverrideSet(TypedDict):
    """The change of the override, in words."""

    resource: str
    said: str


class TrendDay(TypedDict):
    """The figures of a day: as recorded, and adjusted for sampling with a range of 95 %."""

    date: DateText
    raw: float | None
    adjusted: float | None
    low: float | None
    high: float | None
    sampling_rate: float | None
    verdict: str
    figure: str
    reason: str
    complete: bool


class TrendSeries(TypedDict):
    """An event with its days in order. ``alarm`` is true if the verdict on the newest day is that
    events or measured values were lost."""

    name: str
    event: str
    kind: str
    measurement: str
    dimensions: dict[str, str]
    verdict: str
    figure: str
    count_verdict: str
    sum_verdict: str
    reason: str
    alarm: bool
    days: list[TrendDay]


@operation("GET", "resources", name="resources")
async def all_resources(board: Board) -> list[ResourceStatus | ResourceUnreadable]:
    """Every resource: capacity, desired capacity, mode, rate per instance, metrics."""
    told = (board.at_maximum_minutes, board.price)
    return await status.read_all(board.resources.values(), board.store, *told)


@operation("GET", "resources/{name}", 404)
async def resource(board: Board, path: OfResource) -> ResourceStatus:
    """One resource."""
    told = (board.at_maximum_minutes, board.price)
    return await status.read_one(find(board.resources, path.name), board.store, *told)


@operation("GET", "resources/{name}/decisions", 404)
async def resource_decisions(board: Board, path: OfResource, query: Newest) -> list[DecisionEntry]:
    """The newest entries of the decision log."""
    part = (query.limit, query.since, query.before)
    found, changes, text = find(board.resources, path.name), query.changes, query.text
    return await status.read_decisions(found, board.store, *part, changes_only=changes, text=text)


@operation("GET", "resources/{name}/history", 404)
async def resource_history(board: Board, path: OfResource, query: HistoryHours) -> History:
    """Up to 360 points of capacity and metrics, and the newest 1,000 entries that are changes."""
    found = find(board.resources, path.name)
    snapshot = await board.store.load(found.name)
    read = await past(board, snapshot, query)
    changes = [each for each in read.entries if not each.requests_nothing][: status.ENTRIES_MAX]
    return {
        "as_of": format_time(snapshot.read_at),
        "points": read.points,
        "events": [presenting.decision_entry(each) for each in changes],
    }


VIEWS = {"": resource, "decisions": resource_decisions, "history": resource_history}


@operation(
    "GET", "resources/{name?}/{view?}", is_timed=False, forms=(all_resources, *VIEWS.values())
)
async def resources(board: Board, request: Request) -> Reply:
    """The resources as JSON: resources, resources/NAME, …/decisions, …/history."""
    view = request.route.get("view", "")
    if not request.route.get("name"):
        return await all_resources(request, board)
    if view not in VIEWS:
        raise Refused(404, f"{view[:50]!r} is unknown; known: decisions, history")
    return await VIEWS[view](request, board)


@operation("POST", "resources/{name}/override", 404, 409, change="the override was written")
async def override(
    board: Board, path: OfResource, body: OverrideGiven, request: Request
) -> OverrideSet:
    """Set or clear an override of the rules."""
    found = find(board.resources, path.name)
    board.seen.pop(found.name, None)
    change = body.change(author(request, body.by), uuid4().hex)
    entry = await control.set_override(found, change, board.store)
    return {"resource": found.name, "said": entry.reason}


@operation("GET", "trends")
async def trends(board: Board) -> list[TrendSeries]:
    """The event trends that the nightly job computed, as JSON."""
    shown: list[TrendSeries] = (await board.panels["trends"]()).content
    return shown


async def overview(board: Board, resource: Resource) -> Shown:
    """The status of a resource. That of one among many is read again after ``SEEN_SECONDS_MAX``, so
    that each refresh of the page reads those that are left.
    """
    now, (read_at, seen) = time.monotonic(), board.seen.get(resource.name, NEVER)
    if seen is not None and now - read_at < SEEN_SECONDS_MAX:
        return seen
    try:
        async with board.free:
            snapshot = await board.store.load(resource.name)
    except StateUnreadable as error:
        return Shown({"error": str(error)}, [state_unreadable(resource.name, str(error))])
    found = conditions(resource, snapshot, board.at_maximum_minutes)
    told = presenting.status(resource, snapshot, found, board.price)
    load = resource.backlog_metric or next(iter(resource.metrics), "")
    evidence = snapshot.decided.evidence if snapshot.decided else {}
    content = {
        "snapshot": snapshot,
        "status": told,
        "age_limit_minutes": resource.goal.age_limit_minutes,
        "age_minutes": age_minutes(evidence),
        "age_at_most_minutes": evidence.get(AGE_AT_MOST),
        "load": next((each for each in told["metrics"] if each["name"] == load), None),
    }
    shown = Shown(content, found)
    if len(board.resources) > MANY:
        board.seen[resource.name] = now, shown
    return shown


@dataclass(frozen=True, slots=True)
class Past:
    """Entries, newest first, and courses, oldest first, which ``lost`` quarters of an hour lack."""

    since: datetime
    end: datetime
    entries: Sequence[LogEntry]
    course: Sequence[Stretch]
    lost: int = 0

    @property
    def points(self) -> list[HistoryPoint]:
        seconds = (self.end - self.since).total_seconds()
        return presenting.points(self.course, max(seconds / POINTS_MAX, 1))


async def past(board: Board, snapshot: Snapshot, query: HistoryHours) -> Past:
    """The log of the time that is asked for. Of a long time, only changes and courses."""
    end = min(query.before or snapshot.read_at, snapshot.read_at)
    name, since = snapshot.resource_name, end - timedelta(hours=query.hours)
    if query.hours <= DETAILED_HOURS:
        entries = await board.store.log(name, status.READ_MAX, since, before=query.before)
        return Past(since, end, entries, course_of(entries))
    part = (name, status.READ_MAX, since)
    entries, (course, lost) = await asyncio.gather(
        board.store.log(*part, before=end, changes_only=True), board.store.course(name, since, end)
    )
    whole = sorted([*course, *course_of(entries)], key=lambda stretch: stretch.time)
    return Past(since, end, entries, whole, lost)


async def card(board: Board, resource: Resource, seen: Shown, query: HistoryWanted) -> Shown:
    """The same with the charts and the entries of the log."""
    if "error" in seen.content:
        return seen
    async with board.free:
        read = await past(board, seen.content["snapshot"], query)
        entries = read.entries
        if query.kind == presenting.EVERY and query.hours > DETAILED_HOURS:
            end = min((query.until or read.end) + LATER, read.end)
            entries = await board.store.log(resource.name, SEARCHED_MAX, read.since, before=end)
    rows, older = presenting.rows(entries, query.filter, ROWS_MAX)
    if older is None and len(entries) == SEARCHED_MAX:
        older = entries[-1].time
    changed = [each for each in read.entries if each.applies]
    more = {
        "points": read.points,
        "marks": [[format_time(e.time), e.current, e.desired, e.entry_id] for e in changed],
        "rows": rows,
        "older": older and format_time(older),
        "lost": read.lost,
        "since": format_time(read.since),
        "end": format_time(read.end),
    }
    found = [*seen.conditions, *_unreadable(resource.name, entries)]
    return Shown(seen.content | more, sorted(found, key=lambda each: each.rank))


def _unreadable(name: str, entries: Sequence[LogEntry]) -> list[LastingCondition]:
    reasons = [each.reason for each in entries if each.kind is EntryKind.UNREADABLE]
    many = "entry" if len(reasons) == 1 else "entries"
    what = f"{name}: {len(reasons)} {many} of the decision log cannot be read"
    severity = Severity.WARNING
    return [LastingCondition(name, severity, what, r, DEPLOY, resource=name) for r in reasons[:1]]


OPERATIONS = (resources, override, trends)
