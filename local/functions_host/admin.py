"""The admin endpoint that runs a function manually. It requires the master key."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from aiohttp import web

from local.functions_host.event_hub_invocation import event_hub_by_hand
from local.functions_host.functions import (
    EVENT_HUB_TRIGGER,
    HTTP_TRIGGER,
    SERVICE_BUS_TRIGGER,
    TIMER_TRIGGER,
    Function,
    Level,
)
from local.functions_host.request_guard import given_key
from local.functions_host.service_bus_invocation import service_bus_by_hand
from local.functions_host.services import Services
from local.functions_host.timer_listener import timer_datum
from local.functions_host.worker import Invocation, text_datum


def manual_invocation(function: Function, text: str) -> Invocation:
    """The invocation of `function` with `text`. Raises `ValueError` for an HTTP function."""
    name, kind = function.trigger.name, function.trigger.kind
    if kind == HTTP_TRIGGER:
        raise ValueError(f"{function.name} has an HTTP trigger: send a request to its route")
    if kind == TIMER_TRIGGER:
        return Invocation(name, timer_datum(None, past_due=False))
    if kind == SERVICE_BUS_TRIGGER:
        return service_bus_by_hand(function.trigger, text)
    if kind == EVENT_HUB_TRIGGER:
        return event_hub_by_hand(function.trigger, text)
    return Invocation(name, text_datum(text))


class Admin:
    """`POST /admin/functions/{name}`."""

    def __init__(self, services: Services, functions: Sequence[Function]) -> None:
        self._services = services
        self._functions = {each.name.lower(): each for each in functions}
        self._running: set[asyncio.Task[Any]] = set()

    def add_routes(self, app: web.Application) -> None:
        """Add the endpoint to the host's server."""
        app.router.add_post("/admin/functions/{name}", self._run)

    async def finish(self) -> None:
        """Wait for the functions that were run manually."""
        await asyncio.gather(*self._running, return_exceptions=True)

    async def _run(self, request: web.Request) -> web.Response:
        key = given_key(request.headers, request.query)
        if not self._services.keys.opens(Level.ADMIN, "", key):
            return web.Response(status=401)
        if request.content_type != "application/json":
            return web.Response(
                status=415, text="the content type is not application/json: set that header"
            )
        function = self._functions.get(request.match_info["name"].lower())
        if function is None:
            return web.Response(status=404)
        try:
            text = _input(await request.text())
            invocation = manual_invocation(function, text)
        except ValueError as error:
            return web.Response(status=400, text=str(error))
        task = asyncio.create_task(self._services.invoker.invoke(function, invocation))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return web.Response(status=202)


def _input(text: str) -> str:
    """The `input` of the request's JSON. A value that is not a string is passed on as JSON."""
    if not text.strip():
        return ""
    document = json.loads(text)
    if not isinstance(document, dict):
        raise ValueError('expected a JSON object such as {"input": "text"}')
    value = document.get("input", "")
    return value if isinstance(value, str) else json.dumps(value)
