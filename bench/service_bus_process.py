"""A Service Bus stand-in in its own process, so that it takes no CPU time from the measured one.

``python -m bench.service_bus_process SOURCES DELAY_SECONDS`` runs one until its input ends.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from local.azure_apis.service_bus_admin import ServiceBusAdminStandIn
from shared.autoscaling.sources import ServiceBusSubscription

SUBSCRIPTIONS_PER_TOPIC = 10


def sources(count: int) -> Sequence[ServiceBusSubscription]:
    """The subscriptions of a stand-in with ``count`` sources, all different."""
    return [
        ServiceBusSubscription(
            f"topic-{number // SUBSCRIPTIONS_PER_TOPIC}",
            f"subscription-{number % SUBSCRIPTIONS_PER_TOPIC}",
        )
        for number in range(count)
    ]


@contextmanager
def service_bus(source_count: int, delay_seconds: float) -> Iterator[str]:
    """Run a stand-in and yield its connection string. Every answer is delayed."""
    command = [sys.executable, "-m", __name__, str(source_count), str(delay_seconds)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.communicate()  # This closes its input.


async def _serve(source_count: int, delay_seconds: float) -> None:
    stand_in = ServiceBusAdminStandIn()
    stand_in.delay_seconds = delay_seconds
    for source in sources(source_count):
        stand_in.declare_topic(source.topic)
        stand_in.declare_subscription(source.topic, source.subscription)
    async with stand_in:
        print(stand_in.connection_string, flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), float(sys.argv[2])))
