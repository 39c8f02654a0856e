"""What links need from the connection and the server they belong to."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import proton
from proton import Link, Terminus, symbol

from local.amqp_broker.broker import Broker
from local.amqp_broker.conditions import condition_of
from local.amqp_broker.faults import FaultSwitches
from local.amqp_broker.model.errors import BrokerError


@dataclass(frozen=True, slots=True)
class Shared:
    """What all connections of a server have in common.

    `changed` says that there may be something to send on any link. `later` calls a function
    after so many seconds of the machine's time.
    """

    broker: Broker
    faults: FaultSwitches
    changed: Callable[[], None]
    later: Callable[[float, Callable[[], None]], object]


class Peer(Protocol):
    """One connection, seen from its links."""

    shared: Shared

    def drop(self) -> None:
        """Break the connection, as a network does."""

    def flush(self) -> None:
        """Write out what is ready; needed after changes that no incoming frame caused."""


def condition(name: str, description: str) -> proton.Condition:
    """An error with all three fields: the SDKs read the third without looking whether it is there.

    Source: `AMQPException` construction in the pyamqp of azure-servicebus and azure-eventhub.
    """
    return proton.Condition(name, description, {symbol("origin"): "stand-in"})


def condition_for(error: BrokerError) -> proton.Condition:
    return condition(condition_of(error), str(error))


def close_link(link: Link, why: proton.Condition) -> None:
    link.condition = why
    link.close()


def refuse_link(link: Link, why: proton.Condition) -> None:
    """Attach without the terminus that was asked for, then detach with the reason.

    Source: OASIS AMQP 1.0, part 2, section 2.6.3 (refusing a link). The SDKs may
    take the attach for ready; then it is the first operation on the link that raises.
    """
    refused = link.source if link.is_sender else link.target
    refused.type = Terminus.UNSPECIFIED
    link.open()
    close_link(link, why)
