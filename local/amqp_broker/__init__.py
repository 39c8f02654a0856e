"""Service Bus and Event Hubs on 127.0.0.1 over real AMQP, for tests and `make run`.

The official clients (azure-servicebus and azure-eventhub, sync and aio) work against it::

    from local.amqp_broker import AmqpStandIn, VirtualClock

    clock = VirtualClock()                       # or leave it out: the machine's time
    async with AmqpStandIn(clock=clock) as bus:
        bus.namespace.declare_queue("jobs")
        bus.broker.declare_hub("telemetry")
        client = ServiceBusClient.from_connection_string(bus.connection_string)
        ...
        bus.faults.arm(faults.drop_after_accept())
        clock.advance(timedelta(hours=48))

It runs in the event loop that starts it. For code that blocks (the sync clients) run that code
in `asyncio.to_thread`, or start the stand-in with `in_thread`, which gives it a loop of its own::

    with in_thread(AmqpStandIn()) as bus:
        bus.namespace.declare_queue("jobs")

`administration.service_bus` adds administration over HTTP, on the same entities and the same port.

How it differs from Azure: local/FIDELITY.md.

`model` is the broker without a wire; everything else here is the wire. Never deployed.
"""

from local.amqp_broker.server import AmqpStandIn, in_thread
from local.clock import VirtualClock

__all__ = ["AmqpStandIn", "VirtualClock", "in_thread"]
