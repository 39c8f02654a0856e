"""Builds the parts that schedule the processing of data sets by period."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from shared.trends.datasets import flows
from shared.trends.datasets.arrivals import decode_arrival
from shared.trends.datasets.flows import Claims
from shared.trends.datasets.processing import decode_work
from shared.values.messages import MessageSender
from shared.wiring.checks import PROCESSING_CONNECTION
from shared.wiring.parts import Parts

if TYPE_CHECKING:
    from shared.trends.datasets.queues import QueueCheck


class DataSetParts(Parts):
    async def schedule(self, text: str) -> None:
        """Schedule the processing of the data set that an event of Event Grid names."""
        arrival = decode_arrival(text)
        await self.queue_check.check()
        periods, now = self._app.checked.periods, self._app.now()
        await flows.schedule_data_set(arrival, periods, self.processing_sender, now, self.undated)

    async def process(self, body: bytes, message: str) -> None:
        """Process the data set of a message."""
        work, recompute = decode_work(body), self._app.nightly.recompute
        await flows.process_data_set(work, message, self.claims, recompute)

    def log_poison(self, text: str, message_id: str) -> None:
        flows.log_poison(text, message_id)

    @cached_property
    def processing_sender(self) -> MessageSender:
        """Sends to the queue that keeps one message for each data set and period."""
        from shared.wiring.batch_sender import batch_sender  # noqa: PLC0415  heavy to import

        settings = self._app.settings
        connection = settings.service_bus(PROCESSING_CONNECTION)
        return self._app.open(batch_sender, connection, settings.processing_queue, self._app.now)

    @cached_property
    def undated(self) -> set[str]:
        """The data sets of which a path without a date was logged."""
        return set()

    @cached_property
    def queue_check(self) -> QueueCheck:
        from shared.trends.datasets.queues import QueueCheck  # noqa: PLC0415  heavy to import

        settings, periods = self._app.settings, self._app.checked.periods
        connection = settings.service_bus(PROCESSING_CONNECTION)
        queues = settings.processing_queue, settings.working_queue
        return self._app.open(QueueCheck, connection, *queues, periods)

    @cached_property
    def claims(self) -> Claims:
        from shared.trends.store.claims import TableClaims  # noqa: PLC0415  heavy to import

        return self._app.open(TableClaims, self._app.storage)
