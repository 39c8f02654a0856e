"""Attaches links: when a link opens, its role and address decide what it is connected to."""

from collections.abc import Callable
from functools import partial

from proton import Link, PropertyDict, Receiver, Sender, Session, symbol

from local.amqp_broker import addresses, management_bus, management_hub
from local.amqp_broker.authorization import Authorization
from local.amqp_broker.faults import TIMEOUT
from local.amqp_broker.model.errors import (
    BrokerError,
    NotSupported,
    ReceiverDisconnected,
    Unauthorized,
)
from local.amqp_broker.model.hub import Reader
from local.amqp_broker.model.sessions import SessionLock
from local.amqp_broker.model.store import Store
from local.amqp_broker.peer import Peer, close_link, condition, condition_for, refuse_link
from local.amqp_broker.requests import Handler, RequestTarget
from local.amqp_broker.sources import PartitionSource, QueueSource, ReplySource, SessionWait, Source
from local.amqp_broker.targets import CREDIT, Target, into_entity, into_hub

SESSION_WAIT_SECONDS = 65.0
"""How long a receiver waits for a free session unless it sends a timeout. This is the default that
azure-servicebus documents (`create_receive_client`)."""
DOTNET_EPOCH_TICKS = 621_355_968_000_000_000
"""1970-01-01 in .NET ticks: units of 100 ns since the year 1. Session locks are sent in ticks."""

Sink = Target | RequestTarget


class Attaching:
    """The links of one connection. `disconnect` also reaches readers of other connections."""

    def __init__(
        self,
        peer: Peer,
        authorization: Authorization,
        disconnect: Callable[[Reader, BrokerError], None],
    ) -> None:
        self._peer = peer
        self._authorization = authorization
        self._disconnect = disconnect
        self.sinks: dict[Link, Sink] = {}
        self.sources: dict[Link, Source] = {}
        self._replies: dict[tuple[Session, str], ReplySource] = {}

    @property
    def waiting_count(self) -> int:
        return sum(isinstance(source, SessionWait) for source in self.sources.values())

    def open(self, link: Link) -> None:
        """Attach a link that the client has opened, or refuse it."""
        link.source.copy(link.remote_source)
        link.target.copy(link.remote_target)
        link.snd_settle_mode = link.remote_snd_settle_mode
        link.rcv_settle_mode = link.remote_rcv_settle_mode
        try:
            self._authorize(link)
            if isinstance(link, Receiver):
                self._open_sink(link)
            elif isinstance(link, Sender):
                self._open_source(link)
        except BrokerError as error:
            refuse_link(link, condition_for(error))

    def close(self, link: Link) -> None:
        """Remove a link and release what it held."""
        self.sinks.pop(link, None)
        source = self.sources.pop(link, None)
        if source is not None:
            source.close()

    def close_all(self) -> None:
        for link in list(self.sources):
            self.close(link)
        self.sinks.clear()

    def pump(self) -> None:
        self._close_unauthorized()
        for source in list(self.sources.values()):
            source.pump()

    def _close_unauthorized(self) -> None:
        """Close the links whose token has expired, as the service does."""
        for link in [*self.sinks, *self.sources]:
            try:
                self._authorize(link)
            except Unauthorized as error:
                self.close(link)
                close_link(link, condition_for(error))

    def _authorize(self, link: Link) -> None:
        """Raises Unauthorized. The node that takes the tokens needs none."""
        terminus = link.remote_target if isinstance(link, Receiver) else link.remote_source
        path = addresses.path_of(terminus.address)
        if path.lower() != addresses.CBS:
            self._authorization.check(path)

    # Links on which the client sends

    def _open_sink(self, link: Receiver) -> None:
        path = addresses.path_of(link.remote_target.address)
        request_handler = self._request_handler(path)
        if request_handler is not None:
            key = (link.session, path.lower())
            self.sinks[link] = RequestTarget(
                self._peer, request_handler, partial(self._replies.get, key)
            )
        else:
            target, limit_bytes = self._target(link, path)
            link.max_message_size = limit_bytes
            self.sinks[link] = target
        link.open()
        link.flow(CREDIT)

    def _target(self, link: Receiver, path: str) -> tuple[Target, int]:
        broker = self._peer.shared.broker
        name, partition_id = addresses.writer_address(path)
        hub = broker.find_hub(name)
        if hub is None:
            limit = broker.namespace.sendable(path).properties.max_message_bytes
            return Target(self._peer, link, path, limit, into_entity(broker, path)), limit
        if partition_id is not None:
            hub.partition(partition_id)
        limit = hub.properties.max_event_bytes
        return Target(self._peer, link, path, limit, into_hub(broker, hub, partition_id)), limit

    def _request_handler(self, path: str) -> Handler | None:
        broker = self._peer.shared.broker
        lower = path.lower()
        if lower == addresses.CBS:
            return self._authorization.put_token
        if lower == addresses.MANAGEMENT:
            return management_hub.handler(broker)
        entity, _, node = path.rpartition("/")
        if node.lower() != addresses.MANAGEMENT:
            return None
        if broker.find_hub(entity):
            return management_hub.handler(broker)
        return management_bus.handler(broker, entity)

    # Links on which the client receives

    def _open_source(self, link: Sender) -> None:
        path = addresses.path_of(link.remote_source.address)
        if self._request_handler(path) is not None:
            reply = ReplySource(link)
            self._replies[link.session, path.lower()] = reply
            self.sources[link] = reply
            link.open()
            return
        reader = addresses.reader_address(path)
        if reader is not None and self._peer.shared.broker.find_hub(reader.hub):
            self._open_reader(link, reader)
        else:
            self._open_queue(link, path)

    def _open_reader(self, link: Sender, address: addresses.ReaderAddress) -> None:
        broker = self._peer.shared.broker
        hub = broker.hub(address.hub)
        hub.check_group(address.consumer_group)
        partition = hub.partition(address.partition_id)
        start = addresses.position(
            addresses.filters(link.remote_source).get(addresses.SELECTOR_FILTER)
        )
        level = addresses.link_properties(link).get(addresses.OWNER_LEVEL)
        level = None if level is None else int(level)
        group = address.consumer_group.lower()
        reader, driven_out = partition.attach(group, start, level, broker.now())
        for other in driven_out:
            text = f"New receiver with higher epoch of '{level}' is created hence current receiver "
            text += f"with epoch '{other.owner_level}' is getting disconnected."
            self._disconnect(other, ReceiverDisconnected(text))
        self.sources[link] = PartitionSource(self._peer, link, partition, reader)
        link.open()
        self._peer.shared.changed()

    def _open_queue(self, link: Sender, path: str) -> None:
        store = self._peer.shared.broker.namespace.store(path)
        if link.remote_snd_settle_mode == Link.SND_SETTLED:
            raise NotSupported("the receive mode 'receive and delete'")
        asked = addresses.filters(link.remote_source)
        if addresses.SESSION_FILTER not in asked:
            store.check_receivable(None)
            self.sources[link] = QueueSource(self._peer, link, store)
            link.open()
            self._peer.shared.changed()
            return
        session_id = asked[addresses.SESSION_FILTER]
        now = self._peer.shared.broker.now()
        lock = store.accept_session(now, None if session_id is None else str(session_id))
        if lock is not None:
            self._open_session(link, store, lock)
        else:
            self._await_session(link, store)

    def _open_session(self, link: Sender, store: Store, lock: SessionLock) -> None:
        """Send the session id and the end of its lock to the client."""
        chosen = link.source.filter
        chosen.clear()
        chosen.put_map()
        chosen.enter()
        chosen.put_symbol(symbol(addresses.SESSION_FILTER))
        chosen.put_string(lock.session_id)
        chosen.exit()
        ticks = round(lock.until.timestamp() * 10_000_000) + DOTNET_EPOCH_TICKS
        link.properties = PropertyDict({symbol("com.microsoft:locked-until-utc"): ticks})
        self.sources[link] = QueueSource(self._peer, link, store, lock)
        link.open()
        self._peer.shared.changed()

    def _await_session(self, link: Sender, store: Store) -> None:
        wait = SessionWait(self._peer, store, lambda lock: self._open_session(link, store, lock))
        self.sources[link] = wait
        milliseconds = addresses.link_properties(link).get(addresses.TIMEOUT_MILLISECONDS)
        seconds = SESSION_WAIT_SECONDS if milliseconds is None else int(milliseconds) / 1000
        self._peer.shared.later(seconds, lambda: self._give_up(link, wait))

    def _give_up(self, link: Sender, wait: SessionWait) -> None:
        if self.sources.get(link) is wait and wait.waits:
            del self.sources[link]
            text = "The operation did not complete within the allocated time."
            refuse_link(link, condition(TIMEOUT, text))
            self._peer.flush()
