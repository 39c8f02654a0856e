"""``make soak``: several processes read an event hub and are killed at random.

It uses Azurite, the AMQP stand-in and two kinds of real processes: the app in the local functions
host, and ``python -m shared run``. The kinds are killed in turns. It prints figures as one JSON
object. The exit code is 1 if anything was lost, duplicated or out of order.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from azure.data.tables.aio import TableClient
from azure.eventhub.aio import EventHubProducerClient

from bench.soak.account import Account, Collector
from bench.soak.fleet import Fleet, Kind
from bench.soak.producer import Producer
from bench.soak.recovery import RecoveryWatch
from local.amqp_broker import AmqpStandIn
from local.amqp_broker.model.properties import HubProperties
from local.azurite import Azurite
from shared.ingestion.store.owners import OwnershipStore
from shared.wiring.app import App

SETTINGS = {
    "OwnershipRenewSeconds": "2",
    "OwnershipExpireSeconds": "6",
    "BalancingSeconds": "0.5",
    "IngestTailSchedule": "*/5 * * * * *",
    "BreakerFailures": "0",  # Poison events are counted here and must not open the breaker.
    # The app's own rules are not evaluated, but they are checked.
    "SubscriptionId": "00000000-0000-0000-0000-000000000001",
    "ResourceGroup": "soak",
    "ResourceToScale": "soak",
    "Topic": "soak",
    "Subscription": "soak",
}
END_SECONDS_MAX = 600
WARM_UP_SECONDS_MAX = 60


@dataclass(slots=True)
class Soak:
    """One soak test, from empty stores to the final account."""

    options: argparse.Namespace
    chance: random.Random
    stand_in: AmqpStandIn
    producer: Producer
    fleet: Fleet
    watch: RecoveryWatch
    owners: OwnershipStore
    lost_readers: int = 0
    killed: Counter[Kind] = field(default_factory=Counter)

    async def run(self) -> tuple[float, list[int]]:
        """Return the seconds during which events flowed, and the exit codes of the processes."""
        for number in range(self.options.processes):
            self.fleet.start(Kind.HOST if number < self.options.hosts else Kind.RUNNER)
        kinds = self.fleet.kinds
        await self._until(lambda: bool(self.watch.checkpoints), WARM_UP_SECONDS_MAX, feed=True)
        began = time.monotonic()
        for kill in range(self.options.kills):
            left = self.options.events - self.producer.sent
            await self.producer.send(left // (self.options.kills - kill))
            await self._kill(kinds[kill % len(kinds)])
            await asyncio.sleep(self.options.interval * self.chance.uniform(0.5, 1.5))
            _progress(f"{kill + 1} of {self.options.kills} kills, {self.producer.sent} events sent")
        await self._until(self._complete, END_SECONDS_MAX)
        await self._all_sent()
        seconds = time.monotonic() - began
        return seconds, await self.fleet.stop()

    async def _kill(self, kind: Kind) -> None:
        """Kill a process of this kind. The kinds take turns, so that each kind is killed."""
        victim = self.chance.choice(self.fleet.of(kind))
        self.killed[kind] += 1
        rows = (await self.owners.owners()).rows
        await asyncio.to_thread(self.fleet.kill, victim)
        self.lost_readers += await self.watch.killed(victim.pid, rows)
        self.fleet.replace(victim)

    def _complete(self) -> bool:
        done = {p: checkpoint.sequence for p, checkpoint in self.watch.checkpoints.items()}
        partitions = self.stand_in.broker.hub("metrics").partitions
        return all(done.get(p.id, -1) == self.newest(p.id) for p in partitions)

    async def _all_sent(self) -> None:
        """Wait until the outboxes are empty. Owners of partitions send them even without events."""
        async with asyncio.timeout(END_SECONDS_MAX):
            waiting = True
            while waiting:
                waiting = any([await self.watch.store.outbox(s, 1) for s in self.watch.streams])
                await asyncio.sleep(0.1)

    def newest(self, partition_id: str) -> int:
        broker = self.stand_in.broker
        return (
            broker.hub("metrics").partition(partition_id).facts(broker.now()).last_sequence_number
        )

    async def _until(self, done: Any, seconds_max: float, *, feed: bool = False) -> None:
        deadline = time.monotonic() + seconds_max
        while not done():
            if time.monotonic() > deadline:
                raise TimeoutError(f"no end within {seconds_max:g} s: {self.watch.checkpoints}")
            if feed and self.producer.sent == 0:
                await self.producer.send(100)
            await asyncio.sleep(0.1)


async def soak(options: argparse.Namespace) -> dict[str, Any]:
    properties = HubProperties(
        partition_count=options.partitions, consumer_groups=("$Default", "readback")
    )
    async with contextlib.AsyncExitStack() as stack:
        azurite = stack.enter_context(Azurite())
        stand_in = await stack.enter_async_context(AmqpStandIn())
        stand_in.broker.declare_hub("metrics", properties)
        environ = {
            **SETTINGS,
            "AzureWebJobsStorage": azurite.connection_string,
            "EventHubConnection": stand_in.connection_string,
            "ServiceBusConnection": stand_in.connection_string,
        }
        os.environ.update(environ)
        environ |= _all_disabled_but("metric_ingest", "ingest_tail")
        log_file = Path(tempfile.gettempdir()) / f"soak-{os.getpid()}.log"
        log = stack.enter_context(log_file.open("wb"))
        client = EventHubProducerClient.from_connection_string(
            stand_in.connection_string, eventhub_name="metrics"
        )
        producer = Producer(await stack.enter_async_context(client), random.Random(options.seed))
        collector = await _collector(stack, azurite.connection_string)
        result = await _soak(options, stack, stand_in, producer, Fleet(environ, log), collector)
        await collector.finish(azurite.connection_string)
        return _figures(options, producer, result, collector.account) | {"log": str(log_file)}


def _all_disabled_but(*names: str) -> dict[str, str]:
    """App settings that disable all other functions, so that none takes the counted messages."""
    import function_app  # noqa: PLC0415  the import checks the settings

    functions = [each.get_function_name() for each in function_app.functions.get_functions()]
    return {f"AzureWebJobs.{each}.Disabled": "true" for each in functions if each not in names}


async def _collector(stack: contextlib.AsyncExitStack, connection_string: str) -> Collector:
    table = TableClient.from_connection_string(connection_string, "Ingestion")
    await stack.enter_async_context(table)
    await table.create_table()
    return Collector(table, Account())


async def _soak(
    options: argparse.Namespace,
    stack: contextlib.AsyncExitStack,
    stand_in: AmqpStandIn,
    producer: Producer,
    fleet: Fleet,
    collector: Collector,
) -> Mapping[str, Any]:
    ingestion = (await stack.enter_async_context(App())).ingestion
    streams = [ingestion.stream(str(n)) for n in range(options.partitions)]
    chance = random.Random(options.seed + 1)
    watch = RecoveryWatch(ingestion.store, streams, lambda _id: -1)
    run = Soak(options, chance, stand_in, producer, fleet, watch, ingestion.owners)
    watch.newest_of = run.newest
    running = asyncio.create_task(run.run())
    watching, collecting = (asyncio.create_task(each.run()) for each in (watch, collector))
    try:
        await asyncio.wait([running, watching, collecting], return_when=asyncio.FIRST_COMPLETED)
        for task in (watching, collecting):
            if task.done():  # These tasks end only by failing.
                task.result()
        seconds, codes = await running
    finally:
        collector.stopping = True
        watching.cancel()
        running.cancel()
        await asyncio.gather(running, watching, collecting, return_exceptions=True)
        await fleet.stop()
    return {"seconds": seconds, "exit_codes": codes, "lost_readers": run.lost_readers,
            "killed": run.killed, "recovery": watch.seconds}  # fmt: skip


def _figures(
    options: argparse.Namespace, producer: Producer, result: Mapping[str, Any], account: Account
) -> dict[str, Any]:
    verdict = account.verdict(producer.good, producer.poison)
    recovery = sorted(result["recovery"])
    return {
        "ok": not any(verdict.values()) and not any(result["exit_codes"]),
        "events": producer.sent,
        "kills": options.kills,
        "killed_hosts": result["killed"][Kind.HOST],
        "killed_runners": result["killed"][Kind.RUNNER],
        "processes": options.processes,
        "hosts": options.hosts,
        "partitions": options.partitions,
        "seed": options.seed,
        "seconds": round(result["seconds"], 1),
        "events_per_second": round(producer.sent / result["seconds"]),
        "partitions_that_lost_their_reader": result["lost_readers"],
        "recovery_seconds": {
            "count": len(recovery),
            "p50": round(statistics.median(recovery), 2) if recovery else None,
            "max": round(recovery[-1], 2) if recovery else None,
        },
        "dead_letters": account.dead_letters,
        "sent_again": account.sent_again,
        **verdict,
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    parser.add_argument("--kills", type=int, default=200, help="default: %(default)s")
    parser.add_argument("--events", type=int, default=100_000, help="default: %(default)s")
    parser.add_argument(
        "--seed", type=int, default=1, help="seed of events and kills (%(default)s)"
    )
    parser.add_argument("--processes", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--hosts", type=int, default=2, help="how many of the processes are local "
                        "functions hosts (%(default)s)")  # fmt: skip
    parser.add_argument("--partitions", type=int, default=4, help="default: %(default)s")
    parser.add_argument("--interval", type=float, default=4, help="mean seconds between two kills, "
                        "varied by up to half (%(default)s)")  # fmt: skip
    return parser


def _progress(text: str) -> None:
    sys.stderr.write(f"\r{text} ")
    sys.stderr.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # Killed processes break connections.
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # Also stops the child processes.
    figures = asyncio.run(soak(_parser().parse_args(arguments)))
    sys.stderr.write("\n")
    print(json.dumps(figures, indent=2))
    return 0 if figures["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
