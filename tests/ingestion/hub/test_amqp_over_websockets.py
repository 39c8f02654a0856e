"""Where port 5671 is closed: AMQP over WebSockets and TLS, directly and through a proxy.

The clients are the app's own. What a company's network does is in `Gateway`.
"""

from __future__ import annotations

import asyncio
import base64
import re
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest
from aiohttp import WSMsgType, web

from local.amqp_broker import AmqpStandIn
from local.amqp_broker.model.properties import HubProperties
from shared.ingestion.errors import HubUnavailable
from shared.ingestion.hub.client import EventHubReader, send_event
from shared.ingestion.hub.receiver import EventHubReceiver
from shared.ingestion.model import Event, Span, Stream
from shared.messaging.send_state import RetryBudget
from shared.settings.connections import (
    EventHubConnection,
    ServiceBusConnection,
    event_hub_connection,
    service_bus_connection,
)
from shared.values.messages import Message, MessagingError
from shared.wiring.batch_sender import batch_sender
from tests.deployed.services import Certificate, new_host
from tests.local.amqp_rig import LEAVES_SOCKETS_OPEN, forget_open_sockets

pytestmark = [
    *LEAVES_SOCKETS_OPEN,
    pytest.mark.filterwarnings("ignore:.*(BasicAuth|'proxy_auth').* deprecated:DeprecationWarning"),
    pytest.mark.skipif(
        sys.platform != "linux", reason="only Linux answers on 127.x.y.z without configuration"
    ),
]
SECONDS_MAX = 20
USER, PASSWORD = "jane", "p@ss/#1"
LOGIN = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()


def now() -> datetime:
    return datetime.now(UTC)


@dataclass
class Gateway:
    """A host that speaks AMQP over WebSockets, and a proxy that needs a login."""

    broker_port: int
    host: str
    ca_file: str
    proxy_port: int = 0
    port: int = 0
    paths: list[str] = field(default_factory=list)
    """The paths of the WebSockets that were opened."""
    tunnels: list[str] = field(default_factory=list)
    """The targets to which the proxy connected."""

    async def websocket(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(protocols=["AMQPWSB10"])
        await socket.prepare(request)
        self.paths.append(request.path)
        reader, writer = await asyncio.open_connection("127.0.0.1", self.broker_port)

        async def back() -> None:
            while data := await reader.read(65_536):
                await socket.send_bytes(data)

        task = asyncio.create_task(back())
        try:
            async for received in socket:
                if received.type is WSMsgType.BINARY:
                    writer.write(received.data)
        finally:  # the runner cancels handlers at the end
            task.cancel()
            writer.close()
        return socket

    async def tunnel(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        if f"Proxy-Authorization: Basic {LOGIN}" not in head:
            writer.write(b"HTTP/1.1 407 Login required\r\nContent-Length: 0\r\n\r\n")
            writer.close()
            return
        self.tunnels.append(head.split()[1])
        there, back = await asyncio.open_connection(self.host, self.port)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        try:
            with suppress(OSError):
                await asyncio.gather(_copy(reader, back), _copy(there, writer))
        finally:
            back.close()
            writer.close()


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while data := await source.read(65_536):
        target.write(data)
        await target.drain()
    target.close()


@pytest.fixture
async def broker() -> AsyncIterator[AmqpStandIn]:
    async with AmqpStandIn() as running:
        running.namespace.declare_queue("jobs")
        properties = HubProperties(partition_count=1, consumer_groups=("$Default", "readback"))
        running.broker.declare_hub("telemetry", properties)
        yield running


@pytest.fixture
async def gateway(
    broker: AmqpStandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Gateway]:
    found = re.search(r":(\d+)", broker.connection_string)
    assert found is not None
    certificate = Certificate(tmp_path, new_host())
    running = Gateway(int(found[1]), certificate.host, str(certificate.file))
    app = web.Application()
    app.router.add_get("/{path:.*}", running.websocket)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, running.host, 0, ssl_context=certificate.context()).start()
    running.port = runner.addresses[0][1]
    for package in ("eventhub", "servicebus"):  # 443 is not free for tests
        place = f"azure.{package}._pyamqp.aio._connection_async.WEBSOCKET_PORT"
        monkeypatch.setattr(place, running.port)
    proxy = await asyncio.start_server(running.tunnel, "127.0.0.1", 0)
    running.proxy_port = proxy.sockets[0].getsockname()[1]
    yield running
    proxy.close()
    await runner.cleanup()
    forget_open_sockets()


def environment(gateway: Gateway, **others: str) -> dict[str, str]:
    string = f"Endpoint=sb://{gateway.host}/;SharedAccessKeyName=stand-in;SharedAccessKey=stand-in"
    return {
        "EventHubConnection": string,
        "ServiceBusConnection": string,
        "AmqpTransport": "amqpWebSockets",
        "SSL_CERT_FILE": gateway.ca_file,
        **others,
    }


def connections(environ: dict[str, str]) -> tuple[EventHubConnection, ServiceBusConnection]:
    hub = event_hub_connection(environ, "EventHubConnection", "telemetry")
    bus = service_bus_connection(environ, "ServiceBusConnection")
    assert isinstance(hub, EventHubConnection)
    assert isinstance(bus, ServiceBusConnection)
    return hub, bus


def proxy_url(gateway: Gateway, password: str = "p%40ss%2F%231") -> str:
    return f"http://{USER}:{password}@127.0.0.1:{gateway.proxy_port}"


class Enough(Exception):
    """Ends receiving."""


async def received(hub: EventHubConnection) -> bytes:
    """The first event, as `python -m shared run` receives it."""
    bodies: list[bytes] = []

    async def deliver(batch: Sequence[Event]) -> None:
        bodies.extend(event.body for event in batch)
        raise Enough

    with pytest.raises(Enough):
        await EventHubReceiver(hub, "$Default").receive("0", None, 1, deliver)
    return bodies[0]


async def read_back(hub: EventHubConnection) -> bytes:
    stream = Stream(hub.namespace, hub.hub, "$Default", "0")
    (event,) = (await EventHubReader(hub, "readback").read_back(stream, Span(0, 0))).events
    return event.body


@pytest.mark.parametrize("through_proxy", [False, True])
async def test_all_clients_work_where_only_port_443_is_open(
    broker: AmqpStandIn, gateway: Gateway, through_proxy: bool
) -> None:
    proxy = {"HTTPS_PROXY": proxy_url(gateway)} if through_proxy else {}
    hub, bus = connections(environment(gateway, **proxy))
    async with asyncio.timeout(SECONDS_MAX):
        await send_event(hub, b"an event")
        assert await read_back(hub) == await received(hub) == b"an event"
        await EventHubReader(hub, "readback").check_group("$Default", "0")
        sender = batch_sender(bus, "jobs", now)
        assert (await sender.send([Message(b"a message", "id")])).sent == 1
        await sender.close()
    assert broker.namespace.counts("jobs", now()).active == 1
    assert set(gateway.paths) == {"/$servicebus/websocket"}
    target = f"{gateway.host}:{gateway.port}"
    assert set(gateway.tunnels) == ({target} if through_proxy else set())
    assert len(gateway.tunnels) in (0, len(gateway.paths))


async def test_a_proxy_that_refuses_is_told_without_its_password(
    gateway: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    proxy = proxy_url(gateway, "wrong-password")
    hub, bus = connections(environment(gateway, HTTPS_PROXY=proxy))
    told: list[str] = []
    async with asyncio.timeout(SECONDS_MAX):
        for attempt in (send_event(hub, b""), read_back(hub), received(hub)):
            with pytest.raises(HubUnavailable) as raised:
                await attempt
            told.append(str(raised.value))
        sender = batch_sender(bus, "jobs", now, budget=RetryBudget(1, pause_seconds=0.01))
        with pytest.raises(MessagingError) as failed:
            await sender.send([Message(b"", "id")])
        told.append(str(failed.value))
        await sender.close()
    assert [text for text in told if "407" not in text] == []
    assert "wrong-password" not in " ".join(told) + caplog.text
    assert gateway.paths == []
    caplog.clear()  # its tracebacks hold on to sessions, which the clients leave open
