"""Properties of entities, checked when they are created.

Defaults and bounds: learn.microsoft.com/azure/service-bus-messaging/service-bus-quotas and
.../azure/event-hubs/event-hubs-quotas.
"""

from dataclasses import dataclass
from datetime import timedelta

from local.amqp_broker.model.errors import InvalidProperties

LOCK_DURATION_MAX = timedelta(minutes=5)
DUPLICATE_WINDOW_MIN = timedelta(seconds=20)
DUPLICATE_WINDOW_MAX = timedelta(days=7)
STANDARD_MESSAGE_BYTES_MAX = 256 * 1024
HUB_EVENT_BYTES_MAX = 1024 * 1024
HUB_PARTITIONS_MAX = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueProperties:
    """A queue or a subscription.

    `duplicate_window` None turns duplicate detection off. `max_delivery_count` None sets no limit
    on failed deliveries, as in dead-letter queues.
    """

    lock_duration: timedelta = timedelta(minutes=1)
    max_delivery_count: int | None = 10
    requires_session: bool = False
    duplicate_window: timedelta | None = None
    forward_to: str | None = None
    time_to_live: timedelta | None = None
    dead_letters_expired: bool = False
    max_message_bytes: int = STANDARD_MESSAGE_BYTES_MAX

    def __post_init__(self) -> None:
        if not timedelta(0) < self.lock_duration <= LOCK_DURATION_MAX:
            raise InvalidProperties(
                f"lock duration is {self.lock_duration}; it must be above 0 and at most 5 minutes"
            )
        if self.max_delivery_count is not None and self.max_delivery_count < 1:
            raise InvalidProperties(
                f"max delivery count is {self.max_delivery_count}; it must be at least 1"
            )
        if self.requires_session and self.forward_to is not None:
            raise InvalidProperties("an entity with sessions cannot forward")
        _check_common(self.duplicate_window, self.time_to_live, self.max_message_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicProperties:
    """A topic. `time_to_live` is an upper bound for messages in its subscriptions."""

    duplicate_window: timedelta | None = None
    time_to_live: timedelta | None = None
    max_message_bytes: int = STANDARD_MESSAGE_BYTES_MAX

    def __post_init__(self) -> None:
        _check_common(self.duplicate_window, self.time_to_live, self.max_message_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class HubProperties:
    """An event hub. Events older than `retention` are removed."""

    partition_count: int = 4
    retention: timedelta = timedelta(days=1)
    consumer_groups: tuple[str, ...] = ("$Default",)
    max_event_bytes: int = HUB_EVENT_BYTES_MAX

    def __post_init__(self) -> None:
        if not 1 <= self.partition_count <= HUB_PARTITIONS_MAX:
            raise InvalidProperties(
                f"{self.partition_count} partitions; there must be 1 to {HUB_PARTITIONS_MAX}"
            )
        if self.retention <= timedelta(0):
            raise InvalidProperties(f"retention is {self.retention}; it must be above 0")
        if self.max_event_bytes < 1:
            raise InvalidProperties(
                f"largest event is {self.max_event_bytes} bytes; it must be at least 1"
            )


def _check_common(window: timedelta | None, ttl: timedelta | None, max_bytes: int) -> None:
    if window is not None and not DUPLICATE_WINDOW_MIN <= window <= DUPLICATE_WINDOW_MAX:
        raise InvalidProperties(
            f"duplicate detection window is {window}; it must be 20 seconds to 7 days"
        )
    if ttl is not None and ttl <= timedelta(0):
        raise InvalidProperties(f"time to live is {ttl}; it must be above 0")
    if max_bytes < 1:
        raise InvalidProperties(f"largest message is {max_bytes} bytes; it must be at least 1")
