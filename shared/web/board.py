"""What the page and the JSON endpoints read, and the one thing that they may change."""

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
from shared.web.http import Refused, Reply, Request, refused, shown

POINTS_MAX = 360
HOURS_MAX = 72
LINES_MAX = 1000
KEPT_LINES_MAX = 20_000
"""Of one resource: a day of decisions every 15 s on three metrics."""
OVERLAP = timedelta(seconds=30)
"""Lines of one time are not written at once; those of the last moments are read again."""
PANEL_SECONDS_MAX = 8
UNKNOWN = "it is not known whether the override was written"
FIELDS = ("mode", "exact", "floor", "freeze_scale_in", "reason", "for", "by", "clear")
"""Of an override."""
STATUS: Mapping[type[Exception], int] = {
    UnknownResource: 404,
    OverrideRefused: 400,
    StateConflict: 409,
}
"""What a refusal of the flows is answered with."""
log = logging.getLogger(__name__)

Panel = Callable[[], Awaitable[Any]]


class RecentLog:
    """The last hours of the log by resource, newest first, kept between requests: a page that
    looks again reads what is new."""

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self._kept: dict[str, dict[tuple[datetime, str], LogEntry]] = defaultdict(dict)
        self._from: dict[str, datetime] = {}
        self._locks: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def lines(self, resource_name: str, since: datetime) -> list[LogEntry]:
        """All lines since then, but no more than KEPT_LINES_MAX of the newest."""
        async with self._locks[resource_name]:
            await self._catch_up(resource_name, since)
        cached = self._kept[resource_name].values()
        return sorted((e for e in cached if e.time >= since), key=lambda e: e.time, reverse=True)

    async def _catch_up(self, name: str, since: datetime) -> None:
        """Lines are kept without a gap, from the earliest time asked for; or the newest, at most.

        So where the caller looks before that time, or only after the newest line, all is read anew.
        """
        cached, start = self._kept[name], since
        newest = max((time for time, _ in cached), default=None)
        if newest is not None and self._from[name] <= since <= newest:
            start = newest - OVERLAP
        else:
            cached.clear()
            self._from[name] = since
        for line in await self._store.log(name, KEPT_LINES_MAX, since=start):
            cached[line.time, line.entry_id] = line
        for key in sorted(cached)[: max(len(cached) - KEPT_LINES_MAX, 0)]:
            del cached[key]


@dataclass(frozen=True, slots=True)
class Board:
    """Everything that can be looked at. A panel answers what JSON can hold."""

    resources: Mapping[str, Resource]
    store: StateStore
    recent: RecentLog
    panels: Mapping[str, Panel] = field(default_factory=lambda: MappingProxyType({}))


def cached(panel: Panel, seconds: float, clock: Callable[[], float] = time.monotonic) -> Panel:
    """The panel's answer, asked for again once it is so old."""
    answers: list[tuple[float, Any]] = []

    async def answer() -> Any:
        now = clock()
        if not answers or now - answers[-1][0] >= seconds:
            answers[:] = [(now, await panel())]
        return answers[-1][1]

    return answer


async def read(board: Board, request: Request) -> Reply:
    """All resources, or one of them, or its ``decisions`` or ``history``, as the route names it."""
    return await _answer(request.route.get("name") or "resources", _read(board, request))


async def read_panel(board: Board, name: str) -> Reply:
    """One panel. The caller is the function of that panel, so its key opens no other one."""
    return await _answer(name, board.panels[name]())


async def _answer(
    name: str, answer: Awaitable[Any], failure: Callable[[str, Exception], str] | None = None
) -> Reply:
    try:
        async with asyncio.timeout(PANEL_SECONDS_MAX):
            return shown(await answer)
    except Refused as error:
        return refused(error)
    except Exception as error:
        if status := STATUS.get(type(error)):
            return refused(Refused(status, str(error)))
        return refused(Refused(503, (failure or not_read)(name, error)))


async def _read(board: Board, request: Request) -> Any:
    name, view = request.route.get("name", ""), request.route.get("view", "")
    if not name:
        return await status.run(board.resources.values(), board.store)
    resource = find(board.resources, name)
    if view == "decisions":
        limit = request.number("limit", 50, 1, LINES_MAX)
        return await status.decisions(resource, board.store, int(limit))
    if view == "history":
        return await history(board, resource, request.number("hours", 3, 0.01, HOURS_MAX))
    if view:
        raise Refused(404, f"{view[:50]!r} is not here; known: decisions, history")
    return await status.one(resource, board.store)


async def read_part(name: str, read: Awaitable[Any]) -> Any:
    """What a part of the page shows, or ``error``: one that fails must not hide the others."""
    try:
        async with asyncio.timeout(PANEL_SECONDS_MAX):
            return await read
    except Exception as error:
        return {"error": not_read(name, error)}


def not_read(name: str, error: Exception) -> str:
    """Why it cannot be shown, for people; the text of another's error is for the log alone."""
    log.warning("[panel_failed] %s: %s: %s", name, type(error).__name__, error)
    if isinstance(error, StateUnreadable | RowUnreadable):
        return str(error)
    return f"cannot be shown now: {_reason(error)}"


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {PANEL_SECONDS_MAX} s"
    return type(error).__name__


async def history(board: Board, resource: Resource, hours: float) -> dict[str, Any]:
    now = (await board.store.load(resource.name)).read_at
    span = timedelta(hours=hours)
    lines = await board.recent.lines(resource.name, now - span)
    return presenting.history(lines, now, max(span.total_seconds() / POINTS_MAX, 1))


async def put_override(board: Board, name: str, request: Request, change_id: str) -> Reply:
    """Override the rules, or go back to them: see Override and docs/operations.md.

    The body: ``mode, exact, floor, freeze_scale_in, reason, for, by``, or ``{"clear": true}``.
    """

    async def put() -> Any:
        resource = find(board.resources, name)
        line = await control.run(resource, _change(request, change_id), board.store)
        return {"resource": resource.name, "said": line.reason}

    return await _answer(name, put(), _not_written)


def _not_written(name: str, error: Exception) -> str:
    if isinstance(error, StateUnreadable):  # nothing is decided as it is
        return str(error)
    log.warning("[override_failed] %s: %s: %s", name, type(error).__name__, error)
    return f"{UNKNOWN}: {_reason(error)}"


def _change(request: Request, change_id: str) -> Change:
    fields = request.fields()
    if unknown := sorted(set(fields) - set(FIELDS)):
        raise Refused(400, f"{unknown[0][:50]!r} is not known; known: {', '.join(FIELDS)}")
    by = request.headers.get("x-ms-client-principal-name") or _text(fields, "by")
    if _flag(fields, "clear"):
        return Change(None, by, change_id)
    lasts = _text(fields, "for")
    mode = _text(fields, "mode")
    if mode and mode not in list(Mode):
        raise Refused(400, f"mode = {mode[:50]!r}: one of {', '.join(Mode)}")
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
        raise Refused(400, f"{name}: text is needed")
    return value.strip()


def _flag(fields: Mapping[str, Any], name: str) -> bool:
    value = fields.get(name, False)
    if not isinstance(value, bool):
        raise Refused(400, f"{name}: true or false is needed")
    return value


def _whole(fields: Mapping[str, Any], name: str) -> int | None:
    value = fields.get(name)
    if value is None or value == "":
        return None
    if type(value) is not int:
        raise Refused(400, f"{name}: a whole number is needed")
    return value
