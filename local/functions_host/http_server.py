"""Serves the HTTP triggers and the admin endpoints on one loopback port.

It checks keys as the real host does. First, it refuses requests that a web page of another site
makes a browser on this machine send (`request_guard`).
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler
from multidict import CIMultiDict, MultiMapping

from local.functions_host.admin import Admin
from local.functions_host.errors import HostStartFailed
from local.functions_host.functions import HTTP_TRIGGER, Function, Level
from local.functions_host.logs import log_event
from local.functions_host.request_guard import given_key, refusal
from local.functions_host.routes import Route, compile_route
from local.functions_host.services import Services
from local.functions_host.worker import Invocation, bytes_datum, http_datum, text_datum

ADDRESS = "127.0.0.1"
_BODY_LIMIT_BYTES = 100 * 1024 * 1024  # the host's own limit


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An HTTP-triggered function and its route. Empty `methods` means all methods."""

    function: Function
    route: Route
    methods: frozenset[str]
    level: Level

    @property
    def description(self) -> str:
        """Methods and path, as text for people."""
        methods = ",".join(sorted(self.methods)) or "*"
        return f"{methods} /{self.route.template}"


class HttpServer:
    """Serves every HTTP-triggered function, and /admin."""

    def __init__(self, services: Services, functions: Sequence[Function]) -> None:
        self._services = services
        self._admin = Admin(services, functions)
        self._endpoints = read_endpoints(functions, services.config.route_prefix)
        self._runner: web.AppRunner | None = None
        self.port = services.options.port

    @property
    def endpoints(self) -> Sequence[Endpoint]:
        """The endpoints, most literal route first."""
        return self._endpoints

    async def start(self) -> None:
        """Listen on the loopback address."""
        app = web.Application(client_max_size=_BODY_LIMIT_BYTES, middlewares=[self._guard])
        self._admin.add_routes(app)
        app.router.add_route("*", r"/{path:[\s\S]*}", self._handle)  # a path may contain %0A
        drain_seconds = self._services.options.drain_seconds
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=drain_seconds)
        await self._runner.setup()
        site = web.TCPSite(self._runner, ADDRESS, self.port)
        try:
            await site.start()
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", error)
            raise HostStartFailed(
                f"port {self.port} cannot be used: {why}. Choose another with --port"
            ) from error
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Accept no more requests, and wait for running ones."""
        if self._runner is not None:
            await self._runner.cleanup()
        await self._admin.finish()

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        refused = refusal(request.headers, self.port)
        if refused:
            log_event(logging.WARNING, "request_refused", f"{request.method} refused: {refused}")
            return web.Response(status=403, text=refused)
        return await handler(request)

    async def _handle(self, request: web.Request) -> web.Response:
        for endpoint in self._endpoints:
            if endpoint.methods and request.method not in endpoint.methods:
                continue
            parameters = endpoint.route.match(request.rel_url.raw_path)
            if parameters is not None:
                return await self._answer(endpoint, request, parameters)
        return web.Response(status=404)

    async def _answer(
        self, endpoint: Endpoint, request: web.Request, parameters: Mapping[str, str]
    ) -> web.Response:
        key = given_key(request.headers, request.query)
        if not self._services.keys.opens(endpoint.level, endpoint.function.name, key):
            return web.Response(status=401)  # An empty body, as in the real host.
        return await self._invoke(endpoint.function, request, parameters)

    async def _invoke(
        self, function: Function, request: web.Request, parameters: Mapping[str, str]
    ) -> web.Response:
        trigger = await _request_datum(request, parameters)
        invocation = Invocation(function.trigger.name, trigger, _strings(parameters))
        result = await self._services.invoker.invoke(function, invocation)
        return _response(result.returned) if result.succeeded else web.Response(status=500)


def read_endpoints(functions: Sequence[Function], route_prefix: str) -> Sequence[Endpoint]:
    """The endpoints of the HTTP-triggered functions, most literal route first."""
    triggered = [each for each in functions if each.trigger.kind == HTTP_TRIGGER]
    endpoints = [_endpoint(each, route_prefix) for each in triggered]
    return sorted(endpoints, key=lambda endpoint: endpoint.route.rank)


def _endpoint(function: Function, route_prefix: str) -> Endpoint:
    template = function.trigger.text("route") or function.name
    methods = function.trigger.properties.get("methods") or ()
    try:
        route = compile_route(route_prefix, template)
        level = Level(function.trigger.text("authLevel", Level.FUNCTION).lower())
    except ValueError as error:
        raise HostStartFailed(f"function {function.name}: {error}") from error
    return Endpoint(function, route, frozenset(str(each).upper() for each in methods), level)


async def _request_datum(request: web.Request, parameters: Mapping[str, str]) -> Any:
    return http_datum(
        {
            "method": text_datum(request.method),
            "url": text_datum(str(request.url)),
            "headers": _strings(_joined(request.headers)),
            "query": _strings(_joined(request.query)),
            "params": _strings(parameters),
            "body": bytes_datum(await _body(request)),
        }
    )


async def _body(request: web.Request) -> bytes:
    """The body; empty if it has no length. The real host passes on no body that is sent chunked."""
    body = await request.read()
    return b"" if request.content_length is None else body


def _strings(values: Mapping[str, str]) -> Mapping[str, Any]:
    return {name: text_datum(value) for name, value in values.items()}


def _joined(values: MultiMapping[str]) -> Mapping[str, str]:
    """As in the real host, repeated values are joined with commas."""
    return {name: ",".join(values.getall(name)) for name in values}


def _response(returned: Any) -> web.Response:
    if returned is None:
        return web.Response(status=204)
    if returned.type != "http":
        return web.Response(text=str(returned.value))
    value = returned.value
    headers = CIMultiDict((name, each.value) for name, each in value["headers"].items())
    for cookie in value["cookies"] or ():
        for morsel in cookie.values():
            headers.add("Set-Cookie", morsel.OutputString())
    return web.Response(
        status=int(value["status_code"].value), headers=headers, body=value["body"].value
    )
