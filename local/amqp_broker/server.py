"""The AMQP stand-in: a server on 127.0.0.1 that connects clients to a broker.

A connection string holds one host name for a namespace. Therefore one port serves messages over
AMQP and administration over HTTP.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Self, cast

from local.amqp_broker.authorization import AnyToken, EntraTokens
from local.amqp_broker.broker import Broker
from local.amqp_broker.connection import AmqpConnection
from local.amqp_broker.faults import TransferFault
from local.amqp_broker.frames import PROTOCOL_HEADER
from local.amqp_broker.model.errors import BrokerError
from local.amqp_broker.model.hub import Reader
from local.amqp_broker.model.namespace import Namespace
from local.amqp_broker.peer import Shared
from local.clock import Clock, VirtualClock, utc_now
from local.faults import FaultSwitches

HOST = "127.0.0.1"
STOP_SECONDS = 10.0
TICK_SECONDS = 0.02
"""How often expired locks, schedules and lifetimes are applied when the clock is real time."""
MakeProtocol = Callable[[], asyncio.BaseProtocol]


class ProtocolSwitch(asyncio.Protocol):
    """Chooses the protocol of a connection by its first bytes, then passes those bytes on."""

    def __init__(self, amqp: MakeProtocol, others: MakeProtocol) -> None:
        self._amqp = amqp
        self._others = others
        self._network: asyncio.Transport | None = None
        self._first = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._network = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._first += data
        if self._network is None or len(self._first) < len(PROTOCOL_HEADER):
            return
        make = self._amqp if self._first.startswith(PROTOCOL_HEADER) else self._others
        protocol = cast(asyncio.Protocol, make())
        self._network.set_protocol(protocol)
        protocol.connection_made(self._network)
        protocol.data_received(self._first)


class AmqpStandIn:
    """Service Bus and Event Hubs over AMQP, during an `async with`.

    `namespace` declares queues and topics, `broker.declare_hub` declares event hubs, and `faults`
    arms faults. Port 0 takes a free port. `others` serves connections on the same port that do
    not speak AMQP. With a `token_clock`, only tokens of Microsoft Entra ID are accepted, which
    expire by that clock; else any token.
    """

    def __init__(
        self,
        *,
        clock: Clock = utc_now,
        port: int = 0,
        broker: Broker | None = None,
        others: MakeProtocol | None = None,
        token_clock: Clock | None = None,
    ) -> None:
        self.port = port
        self._token_clock = token_clock
        self._others = others
        self.broker = broker or Broker(clock)
        self.faults = FaultSwitches[TransferFault]()
        self._connections: set[AmqpConnection] = set()
        self._server: asyncio.Server | None = None
        self._ticker: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._unsubscribe: Callable[[], None] = lambda: None
        self._pump_is_due = False

    @property
    def namespace(self) -> Namespace:
        return self.broker.namespace

    @property
    def connection_string(self) -> str:
        """For the SDKs. `UseDevelopmentEmulator` turns TLS off."""
        return (
            f"Endpoint=sb://{HOST}:{self.port};SharedAccessKeyName=stand-in;"
            "SharedAccessKey=stand-in;UseDevelopmentEmulator=true;"
        )

    @property
    def waiting_count(self) -> int:
        """The number of receivers that wait for a free session."""
        return sum(connection.links.waiting_count for connection in self._connections)

    def drop_connections(self) -> None:
        """Abort all connections."""
        for connection in list(self._connections):
            connection.drop()

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._server = await self._loop.create_server(self._new_protocol, HOST, self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        self._ticker = asyncio.create_task(self._tick())
        if isinstance(self.broker.clock, VirtualClock):
            self._unsubscribe = self.broker.clock.subscribe(self._on_time)
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._unsubscribe()
        if self._ticker is not None:
            self._ticker.cancel()
            with suppress(asyncio.CancelledError):
                await self._ticker
        self.drop_connections()
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    def _new_protocol(self) -> asyncio.Protocol:
        if self._others is None:
            return self._new_connection()
        return ProtocolSwitch(self._new_connection, self._others)

    def _new_connection(self) -> AmqpConnection:
        shared = Shared(self.broker, self.faults, self._changed, self._later)
        clock = self._token_clock
        authorization = EntraTokens(self.broker, clock) if clock else AnyToken()
        connection = AmqpConnection(
            shared, authorization, self._disconnect, self._connections.discard
        )
        self._connections.add(connection)
        return connection

    def _changed(self) -> None:
        """Schedule one look for messages to send, after the events at hand are processed."""
        if not self._pump_is_due and self._loop is not None:
            self._pump_is_due = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._pump_is_due = False
        self.broker.advance()
        for connection in list(self._connections):
            connection.links.pump()
            connection.flush()

    def _later(self, seconds: float, action: Callable[[], None]) -> object:
        if self._loop is None:
            raise RuntimeError("the stand-in has not started: use it in an `async with`")
        return self._loop.call_later(seconds, action)

    def _on_time(self) -> None:
        """React to a virtual clock that was advanced, perhaps in another thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._changed)

    def _disconnect(self, reader: Reader, error: BrokerError) -> None:
        for connection in list(self._connections):
            connection.disconnect(reader, error)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            seconds = asyncio.get_running_loop().time()
            for connection in list(self._connections):
                connection.tick(seconds)
            self._pump()


@contextmanager
def in_thread(stand_in: AmqpStandIn) -> Iterator[AmqpStandIn]:
    """Run the stand-in in another thread until the end of the `with`.

    The calling thread may declare entities and arm faults while no client operation is under way.
    It may advance a `VirtualClock` at any time.
    """
    started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()
    thread = threading.Thread(
        target=lambda: asyncio.run(_serve(stand_in, started)), name="amqp-stand-in", daemon=True
    )
    thread.start()
    loop, stop = started.result(STOP_SECONDS)
    try:
        yield stand_in
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(STOP_SECONDS)


async def _serve(
    stand_in: AmqpStandIn, started: "Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]]"
) -> None:
    stop = asyncio.Event()
    try:
        async with stand_in:
            started.set_result((asyncio.get_running_loop(), stop))
            await stop.wait()
    except Exception as error:
        if started.done():
            raise
        started.set_exception(error)
