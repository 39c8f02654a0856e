"""The functions of data sets with mocked bindings, from the event of a blob to one recompute."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from types import ModuleType
from typing import Any
from unittest.mock import Mock

import azure.functions as func
import pytest

from local.twins.datasets import MemoryClaims, MemoryQueueCheck, RecordingRecompute
from local.twins.messaging import MemoryLink, MemoryQueue
from shared.messaging.batch_sender import BatchSender
from shared.trends.datasets.queues import EntitiesMisconfigured, QueueDescription
from shared.wiring.app import App as Parts
from tests.bindings.test_ingestion_functions import imported, names
from tests.settings.test_settings import SINGLE
from tests.trends.datasets.test_arrivals import CLOUD, NOW
from tests.trends.datasets.test_processing import GOOD_IN, GOOD_OUT

ENVIRON = {
    **SINGLE,
    "AzureWebJobsStorage": "UseDevelopmentStorage=true",
    "ProcessingPeriodHours": "24, 2",
}
FUNCTIONS = {"telemetry_arrived", "process_dataset", "telemetry_poison"}


async def no_sleep(_seconds: float) -> None: ...


class App:
    """function_app, freshly imported, with in-memory adapters."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.queue, self.recompute = MemoryQueue(), RecordingRecompute()
        self.facts = {"processing": GOOD_IN, "working": GOOD_OUT}
        self.install_in(imported(monkeypatch, ENVIRON))

    def install_in(self, module: ModuleType) -> None:
        """Replace the adapters of the module's app with the in-memory ones."""
        self.module = module
        sender = BatchSender(MemoryLink(self.queue), no_sleep, lambda: "never used")
        parts: Parts = module.app
        parts.now = lambda: NOW.replace(hour=0)
        queues = "processing", "working"
        check = MemoryQueueCheck(self.facts, parts.checked.periods, *queues)
        parts.data_sets.processing_sender, parts.data_sets.queue_check = sender, check
        parts.data_sets.claims = MemoryClaims(parts.now)
        parts.nightly.recompute = self.recompute  # type: ignore[method-assign]

    async def arrive(self, event: object) -> None:
        message = Mock(spec=func.QueueMessage, id="m")
        message.get_body.return_value = json.dumps(event).encode()
        await self.module.telemetry_arrived(message)

    async def deliver(self, number: int, body: Any) -> None:
        message = Mock(spec=func.ServiceBusMessage, sequence_number=number, message_id="m")
        message.get_body.return_value = body
        await self.module.process_dataset(message)


@pytest.fixture
async def app(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[App]:
    app = App(monkeypatch)
    yield app
    await app.module.app.close()
    sys.modules.pop("function_app", None)


async def test_many_events_make_one_message_and_one_recompute_for_each_period(app: App) -> None:
    app.facts["working"] = QueueDescription("out", None, requires_session=True, forward_to=None)
    for number in range(5):
        await app.arrive({**CLOUD, "id": f"e-{number}"})
    assert len(app.queue.messages) == 2
    for number, message in enumerate([*app.queue.messages, *app.queue.messages]):
        await app.deliver(number, message.body)
    assert [work.message_id for work in app.recompute.calls] == [
        "insights-logs-appevents:2026-03-01",
        "insights-logs-appevents:2026-03-01T22:00Z/PT2H",
    ]


async def test_misconfigured_queues_stop_the_first_event(app: App) -> None:
    app.facts["working"] = QueueDescription("out", None, requires_session=False, forward_to=None)
    with pytest.raises(EntitiesMisconfigured):
        await app.arrive(CLOUD)


async def test_the_functions_of_data_sets_exist_only_if_periods_are_configured(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert names(app.module) >= FUNCTIONS
    without = imported(monkeypatch, {"ProcessingPeriodHours": ""})
    assert not names(without) & FUNCTIONS


def test_the_time_of_the_apps_clock_has_a_time_zone() -> None:
    now = Parts().now()
    assert now.tzinfo is UTC
    assert isinstance(now, datetime)
