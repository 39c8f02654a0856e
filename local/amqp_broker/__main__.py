"""``python -m local.amqp_broker --queue Q``: run a Service Bus stand-in on this machine.

It prints the setting that connects an app to it. Ctrl-C stops it; then it prints how many messages
each queue holds.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Sequence

from local.amqp_broker import HAS_AMQP, NO_AMQP
from local.amqp_broker.administration import service_bus
from local.amqp_broker.processing_queues import declare_processing_queues
from local.clock import utc_now

PORT = 5672
"""The standard port of AMQP without TLS."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m local.amqp_broker", description=__doc__)
    parser.add_argument(
        "--queue", action="append", default=[], metavar="Q", help="declare this queue; repeatable"
    )
    parser.add_argument(
        "--processing", action="store_true", help="also declare the queues processing and working"
    )
    parser.add_argument(
        "--port", type=int, default=PORT, help="0 takes a free port (default: %(default)s)"
    )
    chosen = parser.parse_args(arguments)
    if not HAS_AMQP:
        print(NO_AMQP.format("nothing can be sent or received"), file=sys.stderr)
        return 1
    try:
        asyncio.run(_serve(chosen.port, chosen.queue, processing=chosen.processing))
    except (OSError, OverflowError) as error:
        print(f"port {chosen.port}: {error}. Choose another with --port", file=sys.stderr)
        return 1
    return 0


async def _serve(port: int, queues: Sequence[str], *, processing: bool) -> None:
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    async with service_bus(port=port) as bus:
        namespace = bus.amqp.namespace
        for queue in queues:
            namespace.declare_queue(queue)
        if processing:
            declare_processing_queues(namespace)
            queues = [*queues, "processing", "working"]
        print(f'export ServiceBusConnection="{bus.connection_string}"', flush=True)
        await ended.wait()
        for queue in queues:
            counts = namespace.counts(queue, utc_now())
            print(f"{queue}: {counts.active} message(s), {counts.scheduled} scheduled", flush=True)


if __name__ == "__main__":
    sys.exit(main())
