"""Builds the parts that schedule the processing of data sets by period."""

from __future__ import annotations

from functools import cached_property

from shared.datasets.flows.check_queues import CheckOnce
from shared.datasets.ports import ClaimStore
from shared.messaging.ports import MessageSender
from shared.wiring.checks import PROCESSING_CONNECTION
from shared.wiring.parts import Parts


class DataSetParts(Parts):
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
    def queue_check(self) -> CheckOnce:
        from shared.adapters.service_bus.queue_settings import ServiceBusQueueReader  # noqa: PLC0415  heavy

        settings, periods = self._app.settings, self._app.checked.periods
        connection = settings.service_bus(PROCESSING_CONNECTION)
        reader = self._app.open(ServiceBusQueueReader, connection)
        return CheckOnce(settings.processing_queue, settings.working_queue, periods, reader)

    @cached_property
    def claims(self) -> ClaimStore:
        from shared.adapters.tables.claims import TableClaims  # noqa: PLC0415  heavy to import

        return self._app.open(TableClaims, self._app.storage)
