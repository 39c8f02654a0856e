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
from typing import Any

from shared.autoscaling.deciding.decide import LogEntry
from shared.autoscaling.declaring import Mode
from shared.autoscaling.errors import (
    OverrideRefused,
    StateConflict,
    StateUnreadable,
    UnknownResource,
)
from shared.autoscaling.flows import override as control
from shared.autoscaling.flows import status
from shared.autoscaling.flows.common import find
from shared.autoscaling.operating import presenting
from shared.autoscaling.operating.overrides import Change, duration
from shared.autoscaling.policy import Resource
from shared.autoscaling.ports import StateStore
from shared.autoscaling.state import Override
from shared.ingestion.errors import RowUnreadable
from shared.web.http import Refused, Reply, Request, error_reply, json_reply

POINTS_MAX = 360
HOURS_MAX = 72
LINES_MAX = 1000
CACHED_LINES_MAX = 20_000
"""The most lines that are kept for a resource: a day of decisions every 15 s on three metrics."""
OVERLAP = timedelta(seconds=30)
"""Lines are not always written in the order of their times, so the lines of the last moments are
read again.
"""
PANEL_SECONDS_MAX = 8
OUTCOME_UNKNOWN = "it is not known whether the override was written"
OVERRIDE_FIELDS = ("mode", "exact", "floor", "freeze_scale_in", "reason", "for", "by", "clear")
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

    async def lines(self, resource_name: str, since: datetime) -> list[LogEntry]:
        """The lines since ``since``, but no more than the newest CACHED_LINES_MAX."""
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
        async with asyncio.timeout(PANEL_SECONDS_MAX):
            return json_reply(await answer)
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
        limit = request.number("limit", 50, 1, LINES_MAX)
        return await status.read_decisions(resource, board.store, int(limit))
    if view == "history":
        return await history(board, resource, request.number("hours", 3, 0.01, HOURS_MAX))
    if view:
        raise Refused(404, f"{view[:50]!r} is unknown; known: decisions, history")
    return await status.read_one(resource, board.store)


async def read_part(name: str, read: Awaitable[Any]) -> Any:
    """The content of a part of the page, or ``error``, so that the other parts are still shown."""
    try:
        async with asyncio.timeout(PANEL_SECONDS_MAX):
            return await read
    except Exception as error:
        return {"error": unreadable_message(name, error)}


def unreadable_message(name: str, error: Exception) -> str:
    """The reason that the page shows. The text of a client library's error is only logged."""
    log.warning("[panel_failed] %s: %s: %s", name, type(error).__name__, error)
    if isinstance(error, StateUnreadable | RowUnreadable):
        return str(error)
    return f"cannot be shown now: {_reason(error)}"


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {PANEL_SECONDS_MAX} s"
    return type(error).__name__


async def history(board: Board, resource: Resource, hours: float) -> dict[str, Any]:
    """The charts' points and the changes of the last hours."""
    now = (await board.store.load(resource.name)).read_at
    span = timedelta(hours=hours)
    lines = await board.recent.lines(resource.name, now - span)
    return presenting.history(lines, now, max(span.total_seconds() / POINTS_MAX, 1))


async def put_override(board: Board, name: str, request: Request, change_id: str) -> Reply:
    """Set an override, or clear it: see Override and docs/operations.md.

    The fields of the body are ``mode, exact, floor, freeze_scale_in, reason, for, by``, or
    ``clear`` and ``by``.
    """

    async def put() -> Any:
        resource = find(board.resources, name)
        line = await control.set_override(resource, _change(request, change_id), board.store)
        return {"resource": resource.name, "said": line.reason}

    return await _answer(name, put(), _unwritten_message)


def _unwritten_message(name: str, error: Exception) -> str:
    if isinstance(error, StateUnreadable):  # raised before anything is written
        return str(error)
    log.warning("[override_failed] %s: %s: %s", name, type(error).__name__, error)
    return f"{OUTCOME_UNKNOWN}: {_reason(error)}"


def _change(request: Request, change_id: str) -> Change:
    fields = request.fields()
    if unknown := sorted(set(fields) - set(OVERRIDE_FIELDS)):
        known = ", ".join(OVERRIDE_FIELDS)
        raise Refused(400, f"unknown field {unknown[0][:50]!r}; known: {known}")
    by = request.headers.get("x-ms-client-principal-name") or _text(fields, "by")
    if _flag(fields, "clear"):
        return Change(None, by, change_id)
    lasts = _text(fields, "for")
    mode = _text(fields, "mode")
    if mode and mode not in list(Mode):
        raise Refused(400, f"mode = {mode[:50]!r}: must be one of {', '.join(Mode)}")
    override = Override(
        mode=Mode(mode) if mode else None,
        reason=_text(fields, "reason"),
        freeze_scale_in=_flag(fields, "freeze_scale_in"),
        floor=_whole(fields, "floor"),
        exact=_whole(fields, "exact"),
    )
    return Change(override, by, change_id, duration(lasts) if lasts else None)


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise Refused(400, f"{name}: must be text")
    return value.strip()


def _flag(fields: Mapping[str, Any], name: str) -> bool:
    value = fields.get(name, False)
    if not isinstance(value, bool):
        raise Refused(400, f"{name}: must be true or false")
    return value


def _whole(fields: Mapping[str, Any], name: str) -> int | None:
    value = fields.get(name)
    if value is None or value == "":
        return None
    if type(value) is not int:
        raise Refused(400, f"{name}: must be a whole number")
    return value
