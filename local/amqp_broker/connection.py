"""One AMQP connection: passes received bytes to proton, handles its events, writes its output.

Nothing here blocks.
"""

import asyncio
from collections.abc import Callable
from typing import Any, cast

from proton import Collector, Connection, Delivery, Link, ProtonException, Receiver, Transport

from local.amqp_broker.attaching import Attaching
from local.amqp_broker.authorization import Authorization
from local.amqp_broker.frames import BadFrame, FrameBuffer, message_format, padded
from local.amqp_broker.model.errors import BrokerError
from local.amqp_broker.model.hub import Reader
from local.amqp_broker.peer import Shared
from local.amqp_broker.sources import PartitionSource

CONTAINER = "stand-in"
FRAME_BYTES = 65_536
"""The frame size that Service Bus grants. Larger messages arrive in several frames."""
SESSION_WINDOW_BYTES = 64 * 1024 * 1024

Disconnect = Callable[[Reader, BrokerError], None]


class AmqpConnection(asyncio.Protocol):
    """`closed` is called once when the connection has ended, for whatever reason."""

    def __init__(
        self,
        shared: Shared,
        authorization: Authorization,
        disconnect: Disconnect,
        closed: Callable[["AmqpConnection"], None],
    ) -> None:
        self.shared = shared
        self.links = Attaching(self, authorization, disconnect)
        self._closed = closed
        self._network: asyncio.Transport | None = None
        self._incoming = FrameBuffer()
        self._outgoing = FrameBuffer()
        self._formats: dict[Delivery, int] = {}
        self._collector = Collector()
        self._connection = Connection()
        self._connection.collect(self._collector)
        self._transport = Transport(Transport.SERVER)
        self._transport.max_frame_size = FRAME_BYTES
        self._transport.bind(self._connection)

    # Network

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._network = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._incoming.feed(data):
                if self._network is None:
                    return  # A fault dropped the connection, so the remaining frames are lost.
                self._take(frame)
        except (BadFrame, ProtonException, IndexError):
            self.drop()  # No AMQP client sends such bytes.
            return
        self.flush()

    def eof_received(self) -> None:
        """The client closed its side. asyncio then closes this side too."""

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._network = None
        self.links.close_all()
        self._closed(self)

    def drop(self) -> None:
        if self._network is not None:
            self._network.abort()
            self._network = None

    def flush(self) -> None:
        """Write proton's pending output. Every frame is padded to all of its fields."""
        if self._network is None:
            return
        self._drain_events()
        pending = self._transport.pending()
        while pending > 0:
            ready = bytes(self._transport.peek(pending) or b"")
            self._transport.pop(len(ready))
            for frame in self._outgoing.feed(ready):
                self._network.write(padded(frame))
            pending = self._transport.pending()
        if pending < 0:
            self._network.close()

    def tick(self, seconds: float) -> None:
        """Keep the connection alive. `seconds` comes from a monotonic clock."""
        self._transport.tick(seconds)

    def disconnect(self, reader: Reader, error: BrokerError) -> None:
        """Close the link of a reader if it belongs to this connection."""
        for link, source in list(self.links.sources.items()):
            if isinstance(source, PartitionSource) and source.reader is reader:
                del self.links.sources[link]
                source.disconnect(error)

    # Protocol

    def _take(self, frame: bytes) -> None:
        """Pass on one frame at a time, so that a delivery's first event follows its first frame."""
        begun = message_format(frame)
        at = 0
        while at < len(frame):
            room = self._transport.capacity()
            if room <= 0:
                raise BadFrame("the transport takes no more")
            self._transport.push(frame[at : at + room])
            at += room
            self._drain_events(begun)

    def _drain_events(self, begun: int | None = None) -> None:
        while True:
            event = self._collector.peek()
            if event is None:
                return
            handler = getattr(self, f"_{event.type.method}", None)
            if handler is not None:
                handler(event, begun)
            self._collector.pop()

    def _on_connection_remote_open(self, event: Any, _begun: int | None) -> None:
        event.connection.container = CONTAINER
        event.connection.open()

    def _on_connection_remote_close(self, event: Any, _begun: int | None) -> None:
        event.connection.close()

    def _on_session_remote_open(self, event: Any, _begun: int | None) -> None:
        event.session.incoming_capacity = SESSION_WINDOW_BYTES
        event.session.open()

    def _on_session_remote_close(self, event: Any, _begun: int | None) -> None:
        for link in [*self.links.sources, *self.links.sinks]:
            if link.session == event.session:
                self.links.close(link)
        event.session.close()

    def _on_link_remote_open(self, event: Any, _begun: int | None) -> None:
        self.links.open(event.link)

    def _on_link_remote_close(self, event: Any, _begun: int | None) -> None:
        self._end_link(event.link)

    def _on_link_remote_detach(self, event: Any, _begun: int | None) -> None:
        self._end_link(event.link)

    def _on_link_flow(self, event: Any, _begun: int | None) -> None:
        link = event.link
        source = self.links.sources.get(link)
        if source is None:
            return
        source.pump()
        if link.drain_mode:
            link.drained()

    def _on_delivery(self, event: Any, begun: int | None) -> None:
        delivery, link = event.delivery, event.link
        if isinstance(link, Receiver):
            self._on_transfer(link, delivery, begun)
            return
        source = self.links.sources.get(link)
        if source is not None and delivery.updated and (delivery.remote_state or delivery.settled):
            source.on_disposition(delivery)

    def _on_transfer(self, link: Receiver, delivery: Delivery, begun: int | None) -> None:
        if begun is not None:
            self._formats.setdefault(delivery, begun)
        if delivery.partial or not delivery.readable:
            return
        encoded = bytes(link.recv(delivery.pending) or b"")
        link.advance()
        link.flow(1)
        sink = self.links.sinks.get(link)
        if sink is not None:
            sink.on_transfer(delivery, encoded, self._formats.pop(delivery, 0))

    def _end_link(self, link: Link) -> None:
        self.links.close(link)
        link.close()
