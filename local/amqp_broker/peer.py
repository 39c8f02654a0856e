"""What a link needs from its connection and its server, and how errors are sent to the client."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import proton
from proton import Link, Terminus, symbol

from local.amqp_broker.broker import Broker
from local.amqp_broker.faults import TransferFault
from local.amqp_broker.model import errors
from local.amqp_broker.model.errors import BrokerError
from local.faults import FaultSwitches

INTERNAL_ERROR = "amqp:internal-error"
NOT_FOUND = "amqp:not-found"
NOT_ALLOWED = "amqp:not-allowed"
STOLEN = "amqp:link:stolen"
UNAUTHORIZED_ACCESS = "amqp:unauthorized-access"

_BY_ERROR: tuple[tuple[type[errors.BrokerError], str, int], ...] = (
    (errors.EntityNotFound, NOT_FOUND, 404),
    (errors.EntityExists, "com.microsoft:entity-already-exists", 409),
    (errors.Unauthorized, UNAUTHORIZED_ACCESS, 401),
    (errors.NotAllowed, NOT_ALLOWED, 400),
    (errors.InvalidArgument, "com.microsoft:argument-error", 400),
    (errors.InvalidProperties, "com.microsoft:argument-error", 400),
    (errors.NotSupported, "amqp:not-implemented", 501),
    (errors.SessionLockLost, "com.microsoft:session-lock-lost", 410),
    (errors.LockLost, "com.microsoft:message-lock-lost", 410),
    (errors.SessionCannotBeLocked, "com.microsoft:session-cannot-be-locked", 409),
    (errors.ReceiverDisconnected, STOLEN, 409),
    (errors.TooManyReceivers, "amqp:resource-limit-exceeded", 403),
)


def condition_of(error: errors.BrokerError) -> str:
    return _row(error)[0]


def status_of(error: errors.BrokerError) -> int:
    return _row(error)[1]


def _row(error: errors.BrokerError) -> tuple[str, int]:
    """Return the first matching row; subclasses precede their bases in the table."""
    for kind, condition, status in _BY_ERROR:
        if isinstance(error, kind):
            return condition, status
    return INTERNAL_ERROR, 500


@dataclass(frozen=True, slots=True)
class Shared:
    """What all connections of a server share.

    `changed` reports that there may be something to send on any link. `later` calls a function
    after the given number of seconds of real time.
    """

    broker: Broker
    faults: FaultSwitches[TransferFault]
    changed: Callable[[], None]
    later: Callable[[float, Callable[[], None]], object]


class Peer(Protocol):
    """A connection as its links see it."""

    shared: Shared

    def drop(self) -> None:
        """Abort the connection without closing it properly."""

    def flush(self) -> None:
        """Write pending output. Needed after a change that no incoming frame caused."""


def condition(name: str, description: str) -> proton.Condition:
    """An error with all three fields, because the SDKs read the third without checking for it.

    Source: construction of `AMQPException` in the pyamqp of azure-servicebus and azure-eventhub.
    """
    return proton.Condition(name, description, {symbol("origin"): "stand-in"})


def condition_for(error: BrokerError) -> proton.Condition:
    return condition(condition_of(error), str(error))


def close_link(link: Link, why: proton.Condition) -> None:
    link.condition = why
    link.close()


def refuse_link(link: Link, why: proton.Condition) -> None:
    """Attach without the requested terminus, then detach with the reason.

    Source: OASIS AMQP 1.0, part 2, section 2.6.3 (refusing a link). The SDKs may consider the
    link ready after the attach. In that case, the first operation on the link raises.
    """
    refused = link.source if link.is_sender else link.target
    refused.type = Terminus.UNSPECIFIED
    link.open()
    close_link(link, why)
