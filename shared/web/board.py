"""The data behind the page and the JSON endpoints, and the one endpoint that sets an override."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any, TypedDict

from shared.autoscaling.deciding.decide import LogEntry
from shared.autoscaling.deciding.validation import PLAN_CAPACITY_MAX
from shared.autoscaling.declaring import Mode
from shared.autoscaling.errors import (
    BadMessage,
    OverrideRefused,
    StateConflict,
    StateUnreadable,
    UnknownResource,
)
from shared.autoscaling.flows import override as control
from shared.autoscaling.flows import status
from shared.autoscaling.flows.common import declared_samples, find
from shared.autoscaling.messages import (
    REFUSED_SHOWN_MAX,
    all_refused,
    decode_samples,
    encode_metrics,
)
from shared.autoscaling.operating import presenting
from shared.autoscaling.operating.overrides import (
    DURATION_PATTERN,
    TEXT_LENGTH_MAX,
    Change,
    duration,
)
from shared.autoscaling.operating.shown import (
    DecisionEntry,
    History,
    ResourceStatus,
    ResourceUnreadable,
)
from shared.autoscaling.policy import Resource
from shared.autoscaling.ports import QueueSender, StateStore
from shared.autoscaling.state import Override
from shared.ingestion.errors import RowUnreadable
from shared.values.text import TimeText
from shared.web.endpoint import BODY_REFUSED, Endpoint, replies
from shared.web.fields import Choice, Field, Flag, Number, Text, Whole, in_body, in_query, json_body
from shared.web.http import Refused, Reply, Request, error_reply, in_time, json_reply

POINTS_MAX = 360
CACHED_LINES_MAX = 20_000
"""The most lines that are kept for a resource: three days of decisions every 15 s."""
OVERLAP = timedelta(seconds=30)
"""Lines are not always written in the order of their times, so the lines of the last moments are
read again.
"""
OUTCOME_UNKNOWN = "it is not known whether the override was written"

NAME = Text("name", "the name of the resource in `scaling_rules.py`", required=True)
HOURS = Number("hours", "how far back", 0.01, 72, default=3)
LIMIT = Whole("limit", "the most entries", 1, status.LINES_MAX, default=50)
MODE = Choice("mode", "the mode of the resource", tuple(Mode))
EXACT = Whole(
    "exact",
    "exactly this number of instances, without waiting for a cooldown",
    0,
    PLAN_CAPACITY_MAX,
)
FLOOR = Whole("floor", "at least this number of instances", 0, PLAN_CAPACITY_MAX)
FREEZE = Flag("freeze_scale_in", "`true` prevents scale-in", default=False)
REASON = Text("reason", "the reason, for the decision log", length_max=TEXT_LENGTH_MAX)
LASTS = Text(
    "for",
    "the duration, such as `90m`, `2h` or `1d12h`, at most `366d`; without it the override lasts "
    "until it is cleared",
    pattern=DURATION_PATTERN,
    length_max=30,
    example="90m, 2h or 1d12h",
)
BY = Text(
    "by",
    "the author; if the Function App requires people to sign in, the name of the signed-in person "
    "is used instead",
    length_max=TEXT_LENGTH_MAX,
)
CLEAR = Flag(
    "clear", "`true` removes the override; the only other field allowed is `by`", default=False
)
OVERRIDE: tuple[Field, ...] = (MODE, EXACT, FLOOR, FREEZE, REASON, LASTS, BY, CLEAR)
CLEARING = (BY.name, CLEAR.name)
STATUS_CODES: Mapping[type[Exception], int] = {
    UnknownResource: 404,
    OverrideRefused: 400,
    StateConflict: 409,
}
"""The status code for each exception with which a flow refuses a request."""
log = logging.getLogger(__name__)

Panel = Callable[[], Awaitable[Any]]


class RecentLog:
    """A cache of the last hours of the decision log, by resource, newest first.

    The cache is kept between requests. So when the page refreshes itself, only new lines are read.
    """

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self._kept: dict[str, dict[tuple[datetime, str], LogEntry]] = defaultdict(dict)
        self._from: dict[str, datetime] = {}
        self._locks: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def lines(
        self, resource_name: str, since: datetime, now: datetime | None = None
    ) -> list[LogEntry]:
        """The lines since ``since``, but no more than the newest CACHED_LINES_MAX.

        If the cache has lines that are later than ``now``, the clock was set back since. All lines
        are then read again, because new ones may be earlier than those.
        """
        if now is not None and any(time > now for time, _ in self._kept[resource_name]):
            self._kept[resource_name].clear()
        async with self._locks[resource_name]:
            await self._catch_up(resource_name, since)
        cached = self._kept[resource_name].values()
        return sorted((e for e in cached if e.time >= since), key=lambda e: e.time, reverse=True)

    async def _catch_up(self, name: str, since: datetime) -> None:
        """Keep the cache free of gaps from its start to the newest line.

        If the caller asks for an earlier start, or for a start after the newest line, the cache is
        emptied and all lines are read again.
        """
        cached, start = self._kept[name], since
        newest = max((time for time, _ in cached), default=None)
        if newest is not None and self._from[name] <= since <= newest:
            start = newest - OVERLAP
        else:
            cached.clear()
            self._from[name] = since
        for line in await self._store.log(name, CACHED_LINES_MAX, since=start):
            cached[line.time, line.entry_id] = line
        for key in sorted(cached)[: max(len(cached) - CACHED_LINES_MAX, 0)]:
            del cached[key]


@dataclass(frozen=True, slots=True)
class Board:
    """The resources, the store and the panels of the page. A panel returns a value that JSON can
    represent.
    """

    resources: Mapping[str, Resource]
    store: StateStore
    recent: RecentLog
    panels: Mapping[str, Panel] = field(default_factory=lambda: MappingProxyType({}))


def cached(panel: Panel, seconds: float, clock: Callable[[], float] = time.monotonic) -> Panel:
    """The panel, with a cache: it is read again only if its last content is ``seconds`` old."""
    answers: list[tuple[float, Any]] = []

    async def answer() -> Any:
        now = clock()
        if not answers or now - answers[-1][0] >= seconds:
            answers[:] = [(now, await panel())]
        return answers[-1][1]

    return answer


async def read(board: Board, request: Request) -> Reply:
    """All resources, one resource, or its ``decisions`` or ``history``, depending on the route."""
    return await _answer(request.route.get("name") or "resources", _read(board, request))


async def read_panel(board: Board, name: str) -> Reply:
    """One panel. Each panel has its own function, so a function key gives access to no other
    panel."""
    return await _answer(name, board.panels[name]())


async def _answer(
    name: str, answer: Awaitable[Any], failure: Callable[[str, Exception], str] | None = None
) -> Reply:
    try:
        return json_reply(await in_time(answer))
    except Refused as error:
        return error_reply(error)
    except Exception as error:
        if status := STATUS_CODES.get(type(error)):
            return error_reply(Refused(status, str(error)))
        return error_reply(Refused(503, (failure or unreadable_message)(name, error)))


async def _read(board: Board, request: Request) -> Any:
    name, view = request.route.get("name", ""), request.route.get("view", "")
    if not name:
        return await status.read_all(board.resources.values(), board.store)
    resource = find(board.resources, name)
    if view == "decisions":
        limit = in_query(request, (LIMIT,))[LIMIT.name]
        return await status.read_decisions(resource, board.store, limit)
    if view == "history":
        return await history(board, resource, in_query(request, (HOURS,))[HOURS.name])
    if view:
        raise Refused(404, f"{view[:50]!r} is unknown; known: decisions, history")
    return await status.read_one(resource, board.store)


async def read_part(name: str, read: Awaitable[Any]) -> Any:
    """The content of a part of the page, or ``error``, so that the other parts are still shown."""
    try:
        return await in_time(read)
    except Exception as error:
        return {"error": unreadable_message(name, error)}


def unreadable_message(name: str, error: Exception) -> str:
    """The reason that the page shows. The text of a client library's error is only logged."""
    log.warning("[panel_failed] %s: %s: %s", name, type(error).__name__, error)
    if isinstance(error, StateUnreadable | RowUnreadable):
        return str(error)
    return f"cannot be shown now: {_reason(error)}"


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, TimeoutError) else type(error).__name__


async def history(board: Board, resource: Resource, hours: float) -> History:
    """The charts' points and the changes of the last hours."""
    now = (await board.store.load(resource.name)).read_at
    span = timedelta(hours=hours)
    lines = await board.recent.lines(resource.name, now - span, now)
    return presenting.history(lines, now, max(span.total_seconds() / POINTS_MAX, 1))


class OverrideSet(TypedDict):
    """The change of the override, in words."""

    resource: str
    said: str


async def put_override(board: Board, name: str, request: Request, change_id: str) -> Reply:
    """Set an override, or clear it: see OVERRIDE and docs/operations.md."""

    async def put() -> OverrideSet:
        resource = find(board.resources, name)
        line = await control.set_override(resource, _change(request, change_id), board.store)
        return {"resource": resource.name, "said": line.reason}

    return await _answer(name, put(), _unwritten_message)


class SampleTime(TypedDict):
    """A value and its time."""

    time: TimeText
    value: float


class SampleSent(TypedDict):
    """One sample, with ``schema_version`` 1. See docs/messages.md for version 2."""

    schema_version: int
    resource_name: str
    name: str
    value: SampleTime


class SamplesSent(TypedDict):
    """How many samples were taken, and why others were not."""

    resource: str
    accepted: int
    refused: list[str]


async def push_metrics(board: Board, name: str, request: Request, queue: QueueSender) -> Reply:
    """Check samples of a QueueMetric, and put the valid ones into the queue ``samples``."""

    async def push() -> SamplesSent:
        resource = find(board.resources, name)
        try:
            read = decode_samples(json_body(request).decode("utf-8", "replace"), resource.name)
        except BadMessage as error:
            raise Refused(400, str(error)) from error
        metrics, refused = declared_samples(read, resource, sent=True)
        if not metrics:
            raise Refused(400, str(all_refused(refused)))
        await queue.send_texts(encode_metrics(metrics))
        told = [str(error) for error in refused[:REFUSED_SHOWN_MAX]]
        return {"resource": resource.name, "accepted": len(metrics), "refused": told}

    return await _answer(name, push(), _unsent_message)


def _unsent_message(name: str, error: Exception) -> str:
    log.warning("[samples_not_sent] %s: %s: %s", name, type(error).__name__, error)
    return f"it is not known whether the samples were sent; send them again: {_reason(error)}"


def _unwritten_message(name: str, error: Exception) -> str:
    if isinstance(error, StateUnreadable):  # raised before anything is written
        return str(error)
    log.warning("[override_failed] %s: %s: %s", name, type(error).__name__, error)
    return f"{OUTCOME_UNKNOWN}: {_reason(error)}"


def _change(request: Request, change_id: str) -> Change:
    given = in_body(request, OVERRIDE)
    by = request.headers.get("x-ms-client-principal-name") or given["by"] or ""
    if given["clear"]:
        if others := [name for name, value in given.items() if value and name not in CLEARING]:
            raise Refused(400, f"{others[0]}: is not allowed beside clear, which takes only by")
        return Change(None, by.strip(), change_id)
    override = Override(
        mode=Mode(given["mode"]) if given["mode"] else None,
        reason=(given["reason"] or "").strip(),
        freeze_scale_in=given["freeze_scale_in"],
        floor=given["floor"],
        exact=given["exact"],
    )
    lasts = duration(given["for"]) if given["for"] else None
    return Change(override, by.strip(), change_id, lasts)


ENDPOINTS = (
    Endpoint(
        "resources",
        replies(list[ResourceStatus | ResourceUnreadable], 503),
        path="resources",
        about="Every resource: capacity, desired capacity, mode, throughput, metrics.",
    ),
    Endpoint(
        "resources",
        replies(ResourceStatus, 404, 503),
        path="resources/{name}",
        name="resource",
        about="One resource.",
        in_path=(NAME,),
    ),
    Endpoint(
        "resources",
        replies(list[DecisionEntry], 400, 404, 503),
        path="resources/{name}/decisions",
        name="resource_decisions",
        about="The newest entries of the decision log.",
        in_path=(NAME,),
        in_query=(LIMIT,),
    ),
    Endpoint(
        "resources",
        replies(History, 400, 404, 503),
        path="resources/{name}/history",
        name="resource_history",
        about=f"Up to {POINTS_MAX} points of capacity and metrics.",
        in_path=(NAME,),
        in_query=(HOURS,),
    ),
    Endpoint(
        "push_metrics",
        replies(SamplesSent, 400, 404, *BODY_REFUSED, 503),
        in_path=(NAME,),
        body=SampleSent | list[SampleSent],
    ),
    Endpoint(
        "override",
        replies(OverrideSet, 400, 404, 409, *BODY_REFUSED, 503),
        in_path=(NAME,),
        in_body=OVERRIDE,
        body_example={
            FLOOR.name: 3,
            FREEZE.name: True,
            REASON.name: "sale",
            LASTS.name: "2h",
            BY.name: "anna",
        },
    ),
)
