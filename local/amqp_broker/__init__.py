"""Service Bus and Event Hubs on 127.0.0.1 over AMQP, for tests and `make run`. Never deployed.

The official clients (azure-servicebus and azure-eventhub, sync and aio) work against it::

    from local.amqp_broker import AmqpStandIn, VirtualClock

    clock = VirtualClock()                       # optional; the default is the machine's time
    async with AmqpStandIn(clock=clock) as bus:
        bus.namespace.declare_queue("jobs")
        bus.broker.declare_hub("telemetry")
        client = ServiceBusClient.from_connection_string(bus.connection_string)
        ...
        bus.faults.arm(faults.drop_after_accept())
        clock.advance(timedelta(hours=48))

It runs in the event loop that starts it. Run code that blocks, such as the sync clients, in
`asyncio.to_thread`. Alternatively, `in_thread` starts the stand-in in a thread with its own loop::

    with in_thread(AmqpStandIn()) as bus:
        bus.namespace.declare_queue("jobs")

`administration.service_bus` adds administration over HTTP, for the same entities on the same port.

`model` holds the broker without network code; the other modules here are the network side.
local/FIDELITY.md lists the differences from Azure.

AMQP needs the library Qpid Proton, which is compiled when it is installed. Without it, `model` and
`BrokerAdministration` work.
"""

import sys
from importlib.util import find_spec

from local.clock import VirtualClock

HAS_AMQP = find_spec("proton") is not None
NO_AMQP = (
    "AMQP is off, because its library (python-qpid-proton) is not installed: {}. It is compiled "
    "during `make run`. Install a compiler (Debian or Ubuntu: sudo apt-get install gcc "
    f"python{sys.version_info[0]}.{sys.version_info[1]}-dev; macOS: xcode-select --install)"
)
"""One line, with a place for what does not work."""

if HAS_AMQP:
    from local.amqp_broker.server import AmqpStandIn, in_thread

__all__ = ["HAS_AMQP", "NO_AMQP", "AmqpStandIn", "VirtualClock", "in_thread"]
