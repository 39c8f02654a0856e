"""Runs the functions of the app with in-memory adapters, so that they emit their telemetry.

    python -m tests.azure.running

The environment has the settings. In-memory adapters replace those of Azure below the wiring, so the
app itself measures its stores, counts its invocations and starts the export.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from datetime import date, datetime, timedelta
from functools import partial
from typing import Any
from unittest.mock import Mock

import azure.functions as func
from azure.core.exceptions import AzureError
from azure.storage.queue.aio import QueueClient
from opentelemetry._logs import get_logger_provider
from opentelemetry.metrics import get_meter_provider
from opentelemetry.trace import get_tracer_provider

import scaling_rules
from local.twins.autoscaling import (
    MemoryCapacityControl,
    MemoryQueueSender,
    MemoryReader,
    MemoryStateStore,
)
from local.twins.event_hub import MemoryHubReader
from local.twins.nightly import MemoryInputs, MemoryRunStore, MemorySubmitter
from local.twins.notifications import MemoryNotificationStore
from local.twins.rows import MemoryRows
from shared.autoscaling.declaring import Limits
from shared.autoscaling.flows import override
from shared.autoscaling.operating.overrides import Change
from shared.autoscaling.policy import Recommendation
from shared.autoscaling.sources import ServiceBusSubscription, Source
from shared.autoscaling.state import Override
from shared.autoscaling.store import tables as scaling
from shared.ingestion.errors import BadEvent, BreakerOpen, DependencyDown
from shared.ingestion.model import Effect, Event, OutboxMessage
from shared.ingestion.store import tables as rows
from shared.trends.nightly.model import JobPhase, JobStatus
from shared.trends.store import runs, trends
from shared.values.metering import no_meter
from tests.bindings.test_function_app import message, taken
from tests.bindings.test_ingestion_functions import batch, own
from tests.bindings.test_nightly_functions import SET
from tests.builders import NOW, SOURCE, resource

OWN_RULES = scaling_rules.resources
GROWTH, RATE = 100, 40
"""Items that arrive in a minute, and that an instance finishes in a minute."""
TIMER = Mock(spec=func.TimerRequest)


class Clock:
    """The time of all in-memory adapters."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> datetime:
        return self.now

    def advance(self, **amount: float) -> None:
        self.now += timedelta(**amount)


class NoTrends:
    def __init__(self, _clock: Clock) -> None: ...

    async def since(self, *_arguments: object) -> list[object]:
        return []

    async def close(self) -> None: ...


class Queue:
    """The queue of the events. It is down while ``down`` is true."""

    def __init__(self) -> None:
        self.down = False

    async def send(self, _messages: Sequence[OutboxMessage]) -> None:
        if self.down:
            raise DependencyDown("queue metrics")


def declared(settings: Any) -> list[Any]:
    """The rules as shipped, and a plan whose policy always wants more than the maximum."""
    greedy = resource(
        "plan-2", limits=Limits(1, 2), policy=lambda _: Recommendation(9, "always busy")
    )
    return [*OWN_RULES(settings), greedy]


def _opened(twin: type, clock: Clock, _connection: object, *arguments: object) -> object:
    """The twin, instead of an adapter with these arguments."""
    return twin(clock, *arguments)


class App:
    """function_app with in-memory adapters."""

    def __init__(self) -> None:
        self.clock, self.queue = Clock(), Queue()
        twins = {
            (scaling, "TableStateStore"): MemoryStateStore,
            (rows, "TableRows"): MemoryRows,
            (runs, "TableRunStore"): MemoryRunStore,
            (trends, "TableTrends"): NoTrends,
        }
        for (module, name), twin in twins.items():
            setattr(module, name, partial(_opened, twin, self.clock))
        setattr(scaling_rules, "resources", declared)  # noqa: B010  the name belongs to the user
        import function_app

        self.functions, self.parts = function_app, function_app.app
        self.parts.now = self.clock
        self.submitter = MemorySubmitter()
        self.control = MemoryCapacityControl(self.clock, {"plan-1": 2, "plan-2": 2})
        self.backlog = ServiceBusSubscription("orders", "billing")
        values: dict[Source, float] = {self.backlog: 300.0, SOURCE: 5.0}
        self.reader = MemoryReader(self.clock, values, self.control)
        self._install()

    def _install(self) -> None:
        parts = self.parts
        parts.scaling.control, parts.scaling.reader = self.control, self.reader
        self.metrics, self.actions = MemoryQueueSender(), MemoryQueueSender()
        parts.scaling.metrics_queue, parts.scaling.actions_queue = self.metrics, self.actions
        parts.ingestion.send, parts.ingestion.hub = self.queue.send, MemoryHubReader(ids=("3",))
        parts.nightly.submitter = self.submitter
        parts.nightly.inputs = self.inputs = MemoryInputs({SET: {}})
        parts.notifications.store = MemoryNotificationStore(self.clock)

    # --- autoscaling --------------------------------------------------------------------------

    async def scale(self) -> None:
        """Half an hour of work, in which the first change is refused and the next is confirmed."""
        await self.minutes_pass_until("failed", plan_exists=False)
        await self.minutes_pass_until("confirmed")
        await self.functions.metrics_poison(message("%%%"))
        change = Change(Override(reason="a sale", floor=2), "anna", "change-1")
        store = self.parts.scaling.store
        await override.set_override(self.parts.resources["plan-1"], change, store)

    async def minutes_pass_until(self, kind: str, *, plan_exists: bool = True) -> None:
        for _ in range(30):
            await self.minute(plan_exists=plan_exists)
            entries = await self.parts.scaling.store.log("plan-1", 3)
            if kind in [entry.kind for entry in entries]:
                return
        raise AssertionError(f"no {kind} entry in the decision log")

    async def minute(self, *, plan_exists: bool) -> None:
        """Collect, decide, and scale. Without the plan, scaling is refused."""
        done = RATE * self.control.capacities["plan-1"]
        waiting = self.reader.values[self.backlog] + GROWTH - done
        self.reader.values[self.backlog] = max(waiting, 0.0)
        await self.functions.metric_collector(TIMER)
        for body in taken(self.metrics):
            await self.functions.scaling_logic(message(body))
            for action in taken(self.actions):
                await self.act(action, plan_exists=plan_exists)
        self.clock.advance(minutes=1)

    async def act(self, action: str, *, plan_exists: bool) -> None:
        capacities = self.control.capacities
        self.control.capacities = capacities if plan_exists else {}
        await self.functions.scaler(message(action))
        self.control.capacities = capacities

    async def struggle(self) -> None:
        """Half an hour in which a backlog grows and no action arrives. Then a source fails."""
        for _ in range(30):
            self.reader.values[self.backlog] += GROWTH
            await self.functions.metric_collector(TIMER)
            for body in taken(self.metrics):
                await self.functions.scaling_logic(message(body))
            taken(self.actions)
            await self.functions.reconciler(TIMER)
            self.clock.advance(minutes=1)
        await self.functions.notifier(TIMER)
        backlog = self.reader.values.pop(self.backlog)
        await self.functions.metric_collector(TIMER)
        self.reader.values[self.backlog] = backlog

    # --- events -------------------------------------------------------------------------------

    async def ingest(self) -> None:
        """A dead letter, lost events, and then failures until the breaker opens."""
        self.parts.ingestion.handler_of = lambda _: self._handle
        await self.deliver(own(5), b"nonsense", own(6))
        await self.deliver(own(7), first=10)  # 3 to 9 are gone
        self.queue.down = True
        for _ in range(6):
            await self.deliver(own(8), first=11)

    async def _handle(self, event: Event) -> Effect:
        if event.body == b"nonsense":
            raise BadEvent("the body is not JSON")
        return Effect(event.sequence, "kept", (OutboxMessage(str(event.sequence), "{}"),))

    async def deliver(self, *bodies: bytes, first: int = 0) -> None:
        with suppress(DependencyDown, BreakerOpen):
            await self.functions.metric_ingest(batch(*bodies, first=first))

    # --- nightly runs -------------------------------------------------------------------------

    async def night(self) -> None:
        """A run that fails, its second attempt, which succeeds, and the next date's, which the
        service forgets."""
        await self.yesterday_is_requested()
        await self.run_ends(JobPhase.FAILED, "an executor was lost")
        await self.run_ends(JobPhase.SUCCEEDED)
        self.clock.advance(days=1)
        await self.yesterday_is_requested()
        await self.run_ends(JobPhase.GONE)

    async def yesterday_is_requested(self) -> None:
        yesterday: date = self.clock().date() - timedelta(days=1)
        self.inputs.written = {SET: {yesterday: self.clock()}}
        await self.functions.nightly_trends(TIMER)

    async def run_ends(self, phase: JobPhase, error: str = "") -> None:
        for token, last in self.submitter.statuses.items():
            if last.phase is JobPhase.PENDING:
                self.submitter.statuses[token] = JobStatus(phase, "https://log", error)
        for _ in range(2):
            self.clock.advance(minutes=11)
            await self.functions.trend_runs(TIMER)


async def traced(endpoint: str) -> None:
    """One call of a client of Azure, which leads to a span. The service does not exist."""
    connection = f"QueueEndpoint={endpoint}/queues;AccountName=a;AccountKey=a2V5"
    async with QueueClient.from_connection_string(connection, "metrics", retry_total=0) as queue:
        with suppress(AzureError):
            await queue.get_queue_properties()


async def main() -> None:
    logging.getLogger().setLevel(logging.INFO)
    app = App()
    assert app.parts.meter is not no_meter
    for thread in threading.enumerate():
        if thread.name == "telemetry":
            thread.join()
    await app.scale()
    await app.struggle()
    await app.ingest()
    await app.night()
    await app.functions.notifier(TIMER)
    await traced(os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"])
    flush()


def flush() -> None:
    """Send everything now. At its end, a process waits for a few seconds only."""
    providers: list[Any] = [get_meter_provider(), get_tracer_provider(), get_logger_provider()]
    for provider in providers:
        provider.force_flush()


if __name__ == "__main__":
    asyncio.run(main())
