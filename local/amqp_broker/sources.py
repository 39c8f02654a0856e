"""Links on which clients receive: from queues and subscriptions, from partitions, and replies.

Source: learn.microsoft.com/azure/service-bus-messaging/service-bus-amqp-protocol-guide.
A delivery tag is the lock token, a GUID in .NET's byte order.
"""

from collections.abc import Callable
from uuid import UUID, uuid4

from proton import Delivery, Message, Sender

from local.amqp_broker.messages import delivered, delivered_event, text_keys
from local.amqp_broker.model.errors import BrokerError, NotSupported
from local.amqp_broker.model.hub import Partition, Reader
from local.amqp_broker.model.sessions import SessionLock
from local.amqp_broker.model.store import Store
from local.amqp_broker.peer import Peer, close_link, condition_for


class QueueSource:
    """Delivers messages up to the receiver's credit, and settles them."""

    def __init__(
        self, peer: Peer, link: Sender, store: Store, session: SessionLock | None = None
    ) -> None:
        self._peer = peer
        self._link = link
        self._store = store
        self._session = session
        self._tokens: dict[Delivery, UUID] = {}
        self._is_detached = False

    def pump(self) -> None:
        if self._is_detached:
            return
        broker = self._peer.shared.broker
        try:
            while self._link.credit > 0:
                message = self._store.receive(broker.now(), self._session)
                if message is None or message.lock is None:
                    return
                token = message.lock.token
                delivery = _send(self._link, token.bytes_le, delivered(message))
                self._tokens[delivery] = token
        except BrokerError as error:  # The session lock was lost.
            self._is_detached = True
            close_link(self._link, condition_for(error))

    def on_disposition(self, delivery: Delivery) -> None:
        token = self._tokens.pop(delivery, None)
        if token is None:
            return
        state = delivery.remote_state
        try:
            self._settle(token, delivery)
        except BrokerError as error:
            delivery.local.condition = condition_for(error)
            state = Delivery.REJECTED
        delivery.update(state)
        delivery.settle()
        self._peer.shared.changed()

    def close(self) -> None:
        """Release the session. Messages with a lock of their own stay locked until it expires."""
        if self._session is not None:
            self._store.release_session(self._session, self._peer.shared.broker.now())
            self._peer.shared.changed()

    def _settle(self, token: UUID, delivery: Delivery) -> None:
        now = self._peer.shared.broker.now()
        match delivery.remote_state:
            case Delivery.ACCEPTED:
                self._store.complete(token, now)
            case Delivery.REJECTED:
                self._store.dead_letter(token, now, *_reasons(delivery))
            case Delivery.MODIFIED if delivery.remote.undeliverable:
                raise NotSupported("deferring a message")
            case Delivery.MODIFIED if delivery.remote.failed:
                self._store.abandon(token, now)
            case _:
                self._store.release(token, now)


class PartitionSource:
    """Delivers events as settled, because a reader of a hub acknowledges nothing."""

    def __init__(self, peer: Peer, link: Sender, partition: Partition, reader: Reader) -> None:
        self._peer = peer
        self._link = link
        self._partition = partition
        self._reader = reader

    @property
    def reader(self) -> Reader:
        return self._reader

    def pump(self) -> None:
        now = self._peer.shared.broker.now()
        for event in self._partition.read(self._reader, self._link.credit, now):
            _send(self._link, uuid4().bytes_le, delivered_event(event)).settle()

    def disconnect(self, error: BrokerError) -> None:
        """Close the link because another reader has taken over."""
        close_link(self._link, condition_for(error))
        self._peer.flush()

    def on_disposition(self, delivery: Delivery) -> None:
        """A disposition changes nothing."""

    def close(self) -> None:
        self._partition.detach(self._reader)


class ReplySource:
    """Sends the answers of a request/response node."""

    def __init__(self, link: Sender) -> None:
        self._link = link

    def send(self, reply: Message) -> None:
        _send(self._link, uuid4().bytes_le, reply.encode()).settle()

    def pump(self) -> None:
        """Answers are sent immediately, so there is nothing to do."""

    def on_disposition(self, delivery: Delivery) -> None:
        """A disposition changes nothing."""

    def close(self) -> None:
        """There is nothing to release."""


class SessionWait:
    """A receiver that asked for any session. Its attach is answered once a session is free.

    `opened` is called with the lock of that session.
    """

    def __init__(self, peer: Peer, store: Store, opened: Callable[[SessionLock], None]) -> None:
        self._peer = peer
        self._store = store
        self._opened = opened
        self._waits = True

    @property
    def waits(self) -> bool:
        return self._waits

    def pump(self) -> None:
        if not self._waits:
            return
        lock = self._store.accept_session(self._peer.shared.broker.now())
        if lock is not None:
            self._waits = False
            self._opened(lock)

    def on_disposition(self, delivery: Delivery) -> None:
        """Nothing has been delivered yet."""

    def close(self) -> None:
        self._waits = False


Source = QueueSource | PartitionSource | ReplySource | SessionWait


def _send(link: Sender, tag: bytes, encoded: bytes) -> Delivery:
    delivery = link.delivery(tag)  # type: ignore[arg-type]  # The stub requires str; proton takes bytes.
    link.stream(encoded)
    link.advance()
    return delivery


def _reasons(delivery: Delivery) -> tuple[str | None, str | None]:
    """The reason and description of a dead-lettered message, from the error's info."""
    refused = delivery.remote.condition
    if refused is None:
        return None, None
    info = text_keys(refused.info)
    description = info.get("DeadLetterErrorDescription") or refused.description
    return info.get("DeadLetterReason"), description
