"""Links on which clients send: to a queue, a topic, or a hub."""

from collections.abc import Callable

from proton import Delivery, Receiver

from local.amqp_broker.broker import Broker
from local.amqp_broker.faults import SIZE_EXCEEDED, FaultKind, TransferFault
from local.amqp_broker.frames import BATCH_FORMAT
from local.amqp_broker.messages import content_of, event_contents, unpack
from local.amqp_broker.model.errors import BrokerError
from local.amqp_broker.model.hub import Hub
from local.amqp_broker.peer import NOT_ALLOWED, Peer, close_link, condition, condition_for

BATCH_BYTES_MAX = 1024 * 1024
"""The largest batch, even on a queue of the Premium tier that accepts larger messages."""

CREDIT = 1000
"""How many unanswered transfers a link allows: more than the SDKs ever send."""

EMPTY_BATCH = (
    "The link is force detached by the broker because publisher received a batch message with no "
    "data in it. Detach origin: Publisher."
)
"""How Service Bus answers a batch that is too large for a batch, but not for the link."""

Keep = Callable[[bytes, int], None]
"""Stores an encoded transfer with the given message format, or raises BrokerError."""


def into_entity(broker: Broker, path: str) -> Keep:
    def keep(encoded: bytes, message_format: int) -> None:
        contents = [content_of(each) for each in unpack(encoded, message_format)]
        broker.namespace.send(path, contents, broker.now())

    return keep


def into_hub(broker: Broker, hub: Hub, partition_id: str | None) -> Keep:
    def keep(encoded: bytes, message_format: int) -> None:
        broker.publish(hub, event_contents(encoded, message_format), partition_id)

    return keep


class Target:
    """Stores transfers, unless they are too large or meet a fault."""

    def __init__(self, peer: Peer, link: Receiver, path: str, limit_bytes: int, keep: Keep) -> None:
        self._peer = peer
        self._link = link
        self._path = path
        self._limit_bytes = limit_bytes
        self._keep = keep
        self._is_detached = False

    def on_transfer(self, delivery: Delivery, encoded: bytes, message_format: int) -> None:
        if self._is_detached:
            return  # The transfer was under way when the link was closed, so it is lost.
        fault = self._peer.shared.faults.next_for(self._path)
        if fault is None and message_format == BATCH_FORMAT and len(encoded) > BATCH_BYTES_MAX:
            fault = TransferFault(FaultKind.DETACH, NOT_ALLOWED, EMPTY_BATCH)
        if fault is None:
            _answer(delivery, self._take(encoded, message_format))
        else:
            self._fail(fault, delivery, encoded, message_format)

    def _take(self, encoded: bytes, message_format: int) -> tuple[str, str] | None:
        """Return the condition and description of a refusal; None if the transfer was stored."""
        if len(encoded) > self._limit_bytes:
            return SIZE_EXCEEDED, (
                f"The received message (delivery-id:0, size:{len(encoded)} bytes) "
                f"exceeds the limit ({self._limit_bytes} bytes) currently allowed on the link."
            )
        try:
            self._keep(encoded, message_format)
        except BrokerError as error:
            why = condition_for(error)
            return why.name, why.description or ""
        self._peer.shared.changed()
        return None

    def _fail(
        self, fault: TransferFault, delivery: Delivery, encoded: bytes, message_format: int
    ) -> None:
        match fault.kind:
            case FaultKind.DROP_BEFORE_ACCEPT:
                self._peer.drop()
            case FaultKind.DROP_AFTER_ACCEPT:
                self._take(encoded, message_format)
                self._peer.drop()
            case FaultKind.REFUSE:
                _answer(delivery, (fault.condition, fault.description))
            case FaultKind.DETACH:
                self._is_detached = True
                close_link(self._link, condition(fault.condition, fault.description))
            case FaultKind.DELAY:
                refusal = self._take(encoded, message_format)
                self._peer.shared.later(
                    fault.delay_seconds, lambda: self._answer_late(delivery, refusal)
                )

    def _answer_late(self, delivery: Delivery, refusal: tuple[str, str] | None) -> None:
        _answer(delivery, refusal)
        self._peer.flush()


def _answer(delivery: Delivery, refusal: tuple[str, str] | None) -> None:
    if refusal is None:
        delivery.update(Delivery.ACCEPTED)
    else:
        delivery.local.condition = condition(*refusal)
        delivery.update(Delivery.REJECTED)
    delivery.settle()
