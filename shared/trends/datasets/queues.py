"""Checks that the settings of the two queues guarantee one message per data set and period."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from urllib.parse import unquote, urlsplit

from azure.core.exceptions import ResourceNotFoundError
from azure.servicebus.management import QueueProperties

from shared.azure.refusals import AccessRefused, service_bus_access
from shared.azure.service_bus import administration_client, described
from shared.settings.connections import ServiceBusConnection
from shared.trends.datasets.periods import Period
from shared.values.messages import LinkFailed, MessagingError
from shared.values.redaction import redacting

log = logging.getLogger(__name__)


class EntitiesMisconfigured(MessagingError):
    """The settings of the queues do not guarantee one message per data set and period."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        lines = "\n".join(f"  - {problem}" for problem in self.problems)
        super().__init__(f"{len(self.problems)} problem(s) with Service Bus queues:\n{lines}")


@dataclass(frozen=True, slots=True)
class QueueDescription:
    """The settings of a queue, as Service Bus reports them."""

    name: str
    duplicate_window: timedelta | None
    """How long duplicates are detected; None if they are not detected."""

    requires_session: bool
    forward_to: str | None
    """The name of an entity in the same namespace."""


@redacting
class QueueCheck:
    """Runs the check until it has passed once."""

    def __init__(
        self,
        connection: ServiceBusConnection,
        processing: str,
        working: str,
        periods: Sequence[Period],
    ) -> None:
        self._connection, self._client = connection, administration_client(connection)
        self.processing, self.working, self._periods = processing, working, periods
        self._passed = False

    async def check(self) -> None:
        """Raises EntitiesMisconfigured and LinkFailed. If the app may not read the settings of
        queues, a warning is logged and the check counts as passed."""
        if self._passed:
            return
        try:
            found = await self.facts(self.processing), await self.facts(self.working)
            if wrong := problems(*found, self._periods):
                raise EntitiesMisconfigured(wrong)
        except AccessRefused as error:
            if error.status_code is None:  # without a token, it is unknown what the identity may do
                raise
            text = f"{error}. Without the role, the settings of the queue are not checked"
            log.warning("[queues_not_checked] %s", text, extra={"action": "queues_not_checked"})
        self._passed = True

    async def facts(self, queue: str) -> QueueDescription:
        """Raises LinkFailed if the queue does not exist, and AccessRefused."""
        access = service_bus_access(self._connection, f"queue {queue}", "Owner")
        try:
            with access.explained():
                return _facts(await self._client.get_queue(queue, cls=described))
        except ResourceNotFoundError as error:
            raise LinkFailed(
                f"queue {queue} does not exist in the namespace of {self._connection.name}"
            ) from error

    async def close(self) -> None:
        await self._client.close()


def problems(
    processing: QueueDescription, working: QueueDescription, periods: Sequence[Period]
) -> Sequence[str]:
    """The problems of the queue that receives messages, and of that which delivers them."""
    wrong = _window_problems(processing, periods)
    if processing.requires_session:
        wrong.append(
            f"queue {processing.name}: it requires sessions, so it cannot forward; delete it "
            "and create it without sessions"
        )
    if (processing.forward_to or "").lower() != working.name.lower():
        target = f"to {processing.forward_to}" if processing.forward_to else "to no other queue"
        wrong.append(
            f"queue {processing.name}: it forwards {target}; let it forward to {working.name}"
        )
    if not working.requires_session:
        wrong.append(
            f"queue {working.name}: it does not require sessions, so a data set may be processed "
            "twice at once; delete it and create it with sessions"
        )
    return wrong


def _window_problems(queue: QueueDescription, periods: Sequence[Period]) -> list[str]:
    if queue.duplicate_window is None:
        return [
            f"queue {queue.name}: it does not detect duplicates; delete it and create it "
            "with duplicate detection"
        ]
    return [
        f"queue {queue.name}: it detects duplicates for {queue.duplicate_window}; that must be "
        f"more than {period.memory} for a period of {period.length} with a delay of "
        f"{period.delay} and a lateness of {period.lateness}"
        for period in periods
        if queue.duplicate_window <= period.memory
    ]


def _facts(queue: QueueProperties) -> QueueDescription:
    if queue.requires_session is None:
        raise LinkFailed(f"the namespace did not return the settings of queue {queue.name}")
    window = queue.duplicate_detection_history_time_window
    assert window is None or not isinstance(window, str), "the client parses durations"
    return QueueDescription(
        queue.name,
        window if queue.requires_duplicate_detection else None,
        bool(queue.requires_session),
        _path(queue.forward_to) if queue.forward_to else None,
    )


def _path(address: str) -> str:
    """The path of an entity that is given by its address (by the service) or its name (by people).
    The host is ignored, because it differs for an alias, and its domain between Azure clouds.
    """
    path = urlsplit(address).path if "://" in address else address
    return unquote(path).strip("/")
