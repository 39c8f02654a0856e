"""An operation of the HTTP API: what it accepts, what it does, and how it answers.

``python -m local.http_reference`` writes docs/http.md and docs/openapi.json from the operations.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, get_type_hints

from shared.autoscaling.errors import (
    OverrideRefused,
    StateConflict,
    StateUnreadable,
    UnknownResource,
)
from shared.ingestion.breaker.approval import TokenRefused
from shared.ingestion.errors import (
    DependencyDown,
    HubUnavailable,
    IngestionError,
    NotFound,
    RowChanged,
    RowUnreadable,
    StoreUnavailable,
)
from shared.notifications.conditions import each_cause
from shared.values.redaction import redact
from shared.web.given import Given, in_body, in_path, in_query
from shared.web.http import Refused, Reply, Request, error_reply, in_time, json_reply

log = logging.getLogger(__name__)

READERS = {"path": in_path, "query": in_query, "body": in_body}
STATUS_OF: Mapping[type[Exception], int] = {
    OverrideRefused: 400,
    TokenRefused: 403,
    UnknownResource: 404,
    NotFound: 404,
    StateConflict: 409,
    DependencyDown: 503,
    RowChanged: 503,
    StoreUnavailable: 503,
    HubUnavailable: 503,
    IngestionError: 500,
}
"""The first class that fits decides. An operation answers with 503 instead of a status that it does
not have."""


@dataclass(frozen=True)
class Operation:
    """A function of the API.

    ``serve`` gets the part of the app that serves it and, by the names of its parameters, the
    ``path``, the ``query`` and the ``body`` as models, or the whole ``request``. ``described`` are
    models of what it reads from the request, and ``document`` is the type of a JSON body that it
    parses itself. ``statuses`` are those of refusals, ``told_by`` other types of JSON by status,
    and ``change`` is what it may have done when it ends without an answer. If the route has
    optional parts, ``forms`` are the operations of its addresses.
    """

    name: str
    method: str
    route: str
    serve: Callable[..., Awaitable[Any]]
    statuses: frozenset[int]
    keyed: bool = True
    change: str = ""
    is_timed: bool = True
    refuse: Callable[[Request, Refused], Reply] = error_reply
    forms: Sequence[Operation] = ()
    described: Mapping[str, type[Given]] = field(default_factory=dict)
    told_by: Mapping[int, Any] = field(default_factory=dict)
    document: Any = None

    @cached_property
    def hints(self) -> Mapping[str, Any]:
        return get_type_hints(self.serve, include_extras=True)

    @property
    def given(self) -> Mapping[str, type[Given]]:
        """The models of the ``path``, the ``query`` and the ``body``."""
        return {**{at: self.hints[at] for at in READERS if at in self.hints}, **self.described}

    async def __call__(self, request: Request, part: Any) -> Reply:
        try:
            served = self.serve(part, **self._parsed(request))
            made = await (in_time(served) if self.is_timed else served)
        except Exception as error:
            return self.refuse(request, self._refusal(error))
        return made if isinstance(made, Reply) else json_reply(made)

    def _parsed(self, request: Request) -> dict[str, Any]:
        readers = {"request": lambda whole, _: whole, **READERS}
        return {
            at: read(request, self.hints[at]) for at, read in readers.items() if at in self.hints
        }

    def _refusal(self, error: Exception) -> Refused:
        if isinstance(error, Refused):
            return error
        status = next((code for kind, code in STATUS_OF.items() if isinstance(error, kind)), 503)
        if status not in self.statuses:
            status = 503
        if status < 500:
            return Refused(status, str(error))
        log_failed({self.name: error})
        return Refused(status, told(error, self.change))


def operation(
    method: str, route: str, *refusals: int, name: str = "", **others: Any
) -> Callable[[Callable[..., Awaitable[Any]]], Operation]:
    """``refusals`` are the statuses besides those that follow from what the function reads."""

    def made(serve: Callable[..., Awaitable[Any]]) -> Operation:
        takes = serve.__annotations__
        of_body = (400, 411, 413, 415) if "body" in takes or "document" in others else ()
        of_query = (400,) if "query" in takes else ()
        statuses = frozenset((*refusals, *of_body, *of_query, 503))
        return Operation(name or serve.__name__, method, route, serve, statuses, **others)

    return made


def log_failed(errors: Mapping[str, Exception]) -> None:
    """Log the errors by the names of what failed, and one line for all that are alike."""
    for error in errors.values():
        redact(error)
    for line in each_cause((name, f"{type(e).__name__}: {e}") for name, e in errors.items()):
        log.warning("[request_failed] %s: %s", *line)


def told(error: Exception, change: str = "") -> str:
    """What a caller is told of an error, without the text of a client library."""
    redact(error)
    kind = type(error).__name__
    if isinstance(error, StateUnreadable | RowUnreadable):  # raised before anything is written
        return str(error)
    said = (str(error) if isinstance(error, IngestionError | TimeoutError) else "") or kind
    if not change:
        return f"cannot be shown now: {said}"
    is_known = isinstance(error, IngestionError) and not isinstance(error, StoreUnavailable)
    return said if is_known else f"{said}; it is not known whether {change}"
