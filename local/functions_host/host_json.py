"""Reads the parts of host.json that the local host supports. Reports all mistakes together."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from local.functions_host.errors import HostStartFailed
from local.functions_host.functions import FIXED_DELAY, RetryPolicy
from local.functions_host.storage_queues import MessageEncoding
from shared.settings.host_json import HOST_JSON, host_document, host_value
from shared.values.durations import time_span

Parsed = TypeVar("Parsed")


class JsonReader:
    """Reads values, replaces missing or wrong ones by defaults, and collects `mistakes`."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document
        self.mistakes: list[str] = []
        self.read: set[str] = {"version"}

    def whole(self, key: str, default: int, bounds: tuple[int, int]) -> int:
        value = self._value(key, default)
        low, high = bounds
        if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
            return value
        self.mistakes.append(f"{key} is {value!r}, expected a whole number from {low} to {high}")
        return default

    def flag(self, key: str, *, default: bool) -> bool:
        value = self._value(key, default)
        if isinstance(value, bool):
            return value
        self.mistakes.append(f"{key} is {value!r}, expected true or false")
        return default

    def has(self, key: str) -> bool:
        return self._value(key, None) is not None

    def text(self, key: str, default: str) -> str:
        value = self._value(key, default)
        if isinstance(value, str):
            return value
        self.mistakes.append(f"{key} is {value!r}, expected a string")
        return default

    def parsed(self, key: str, parse: Callable[[Any], Parsed], default: str | None) -> Parsed:
        value = self._value(key, default)
        try:
            if value is None or isinstance(value, str):
                return parse(value or default)
            raise ValueError(f"{value!r} is not a string")
        except ValueError as error:
            self.mistakes.append(f"{key}: {error}")
            return parse(default)

    def unread(self) -> tuple[str, ...]:
        """The settings that nothing has read, by their shortest path."""
        return tuple(_unread(self._document, self.read, ""))

    def _value(self, key: str, default: Any) -> Any:
        self.read.add(key.lower())
        return host_value(self._document, key, default)


def _unread(section: Mapping[str, Any], read: set[str], path: str) -> Iterator[str]:
    for key, value in section.items():
        name = f"{path}{key}"
        if name.lower() in read:
            continue
        if any(each.startswith(f"{name.lower()}.") for each in read) and isinstance(value, Mapping):
            yield from _unread(value, read, f"{name}.")
        else:
            yield name


# The default of the host on every plan except Consumption, where it is 5 minutes.
DEFAULT_FUNCTION_TIMEOUT_SECONDS = 30 * 60.0
_LEASE_MIN, _LEASE_MAX = timedelta(seconds=15), timedelta(seconds=60)  # of a blob
_RECEIVE_LIMIT = 32  # the storage service's limit of messages in one call


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """host.json's `extensions.queues`. The defaults are those of the host."""

    batch_size: int = 16
    new_batch_threshold: int = 8
    max_dequeue_count: int = 5
    visibility_timeout_seconds: int = 0
    max_polling_interval_seconds: float = 60.0
    message_encoding: MessageEncoding = MessageEncoding.BASE64


@dataclass(frozen=True, slots=True)
class ServiceBusOptions:
    """host.json's `extensions.serviceBus`. The defaults are those of the host."""

    max_concurrent_calls: int = 16
    max_concurrent_sessions: int = 8
    auto_complete_messages: bool = True
    max_auto_lock_renewal_seconds: float = 300.0
    session_idle_seconds: float = 60.0


@dataclass(frozen=True, slots=True)
class EventHubOptions:
    """host.json's `extensions.eventHubs`. The defaults are those of the host.

    Without a checkpoint, reading begins at the oldest event if `from_start`, otherwise after the
    newest.
    """

    max_event_batch_size: int = 100
    prefetch_count: int = 300
    batch_checkpoint_frequency: int = 1
    load_balancing_seconds: float = 10.0
    ownership_expiration_seconds: float = 30.0
    from_start: bool = True


@dataclass(frozen=True, slots=True)
class SingletonOptions:
    """host.json's `singleton`, as far as it concerns listeners. The defaults are the host's.

    A lock lasts `lock_seconds` without renewal. A host that does not get it tries again after
    `recovery_seconds`.
    """

    lock_seconds: int = 15
    recovery_seconds: float = 60.0


@dataclass(frozen=True, slots=True)
class HostConfig:
    """The parts of host.json that the local host supports."""

    queues: QueueOptions = field(default_factory=QueueOptions)
    service_bus: ServiceBusOptions = field(default_factory=ServiceBusOptions)
    event_hubs: EventHubOptions = field(default_factory=EventHubOptions)
    singleton: SingletonOptions = field(default_factory=SingletonOptions)
    retry: RetryPolicy | None = None
    route_prefix: str = "api"
    function_timeout_seconds: float | None = DEFAULT_FUNCTION_TIMEOUT_SECONDS
    ignored: tuple[str, ...] = ()
    """Settings in host.json that this host does not support."""


def read_host_json(app_dir: Path, settings: Mapping[str, str] | None = None) -> HostConfig:
    """Read `app_dir`/host.json and the settings that override it. Without the file, all values are
    defaults."""
    try:
        document = host_document(app_dir, settings or {})
    except ValueError as error:
        raise HostStartFailed(f"{app_dir / HOST_JSON}: {error}") from error
    return parse_host_json(document)


def parse_host_json(document: Mapping[str, Any]) -> HostConfig:
    """Parse and check a host.json document. Raises `HostStartFailed` that names every mistake."""
    reader = JsonReader(document)
    config = HostConfig(
        queues=_queues(reader),
        service_bus=_service_bus(reader),
        event_hubs=_event_hubs(reader),
        singleton=_singleton(reader),
        retry=_retry(reader),
        route_prefix=reader.text("extensions.http.routePrefix", "api").strip("/"),
        function_timeout_seconds=reader.parsed("functionTimeout", _timeout, None),
    )
    if reader.mistakes:
        raise HostStartFailed("host.json: " + "; ".join(reader.mistakes))
    return replace(config, ignored=reader.unread())


def _queues(reader: JsonReader) -> QueueOptions:
    section = "extensions.queues"
    batch_size = reader.whole(f"{section}.batchSize", 16, (1, _RECEIVE_LIMIT))
    threshold = reader.whole(f"{section}.newBatchThreshold", batch_size // 2, (0, 1000))
    hidden = reader.parsed(f"{section}.visibilityTimeout", time_span, "00:00:00")
    polling = reader.parsed(f"{section}.maxPollingInterval", time_span, "00:01:00")
    return QueueOptions(
        batch_size=batch_size,
        new_batch_threshold=threshold,
        max_dequeue_count=reader.whole(f"{section}.maxDequeueCount", 5, (1, 1000)),
        visibility_timeout_seconds=int(hidden.total_seconds()),
        max_polling_interval_seconds=polling.total_seconds(),
        message_encoding=reader.parsed(f"{section}.messageEncoding", _encoding, "base64"),
    )


def _service_bus(reader: JsonReader) -> ServiceBusOptions:
    section = "extensions.serviceBus"
    renewal = reader.parsed(f"{section}.maxAutoLockRenewalDuration", time_span, "00:05:00")
    idle = reader.parsed(f"{section}.sessionIdleTimeout", time_span, "00:01:00")
    return ServiceBusOptions(
        max_concurrent_calls=reader.whole(f"{section}.maxConcurrentCalls", 16, (1, 1000)),
        max_concurrent_sessions=reader.whole(f"{section}.maxConcurrentSessions", 8, (1, 2000)),
        auto_complete_messages=reader.flag(f"{section}.autoCompleteMessages", default=True),
        max_auto_lock_renewal_seconds=renewal.total_seconds(),
        session_idle_seconds=idle.total_seconds(),
    )


def _event_hubs(reader: JsonReader) -> EventHubOptions:
    section = "extensions.eventHubs"
    interval = f"{section}.loadBalancingUpdateInterval"
    balancing = reader.parsed(interval, time_span, "00:00:10")
    lifetime = f"{section}.partitionOwnershipExpirationInterval"
    expiration = reader.parsed(lifetime, time_span, "00:00:30")
    if expiration < 2 * balancing:
        reader.mistakes.append(f"{lifetime} is {expiration}, expected at least twice {interval}")
    return EventHubOptions(
        max_event_batch_size=reader.whole(f"{section}.maxEventBatchSize", 100, (1, 10_000)),
        prefetch_count=reader.whole(f"{section}.prefetchCount", 300, (1, 10_000)),
        batch_checkpoint_frequency=reader.whole(
            f"{section}.batchCheckpointFrequency", 1, (1, 10_000)
        ),
        load_balancing_seconds=balancing.total_seconds(),
        ownership_expiration_seconds=expiration.total_seconds(),
        from_start=reader.parsed(f"{section}.initialOffsetOptions.type", _is_start, "fromStart"),
    )


def _is_start(text: str) -> bool:
    if text.lower() not in ("fromstart", "fromend"):
        raise ValueError(f"{text!r} is neither fromStart nor fromEnd")
    return text.lower() == "fromstart"


def _singleton(reader: JsonReader) -> SingletonOptions:
    lock = reader.parsed("singleton.listenerLockPeriod", time_span, "00:00:15")
    polling = "singleton.listenerLockRecoveryPollingInterval"
    recovery = reader.parsed(polling, time_span, "00:01:00")
    if not _LEASE_MIN <= lock <= _LEASE_MAX:
        reader.mistakes.append(
            f"singleton.listenerLockPeriod is {lock}, expected 00:00:15 to 00:01:00"
        )
    if recovery < _LEASE_MIN:
        reader.mistakes.append(f"{polling} is {recovery}, expected at least 00:00:15")
    return SingletonOptions(int(lock.total_seconds()), recovery.total_seconds())


def _retry(reader: JsonReader) -> RetryPolicy | None:
    if not reader.has("retry"):
        return None
    strategy = reader.parsed("retry.strategy", _strategy, "fixedDelay")
    count = reader.whole("retry.maxRetryCount", 0, (-1, 1_000_000))
    delay = reader.parsed("retry.delayInterval", time_span, "00:00:00")
    return RetryPolicy(strategy, count, delay.total_seconds())


def _strategy(text: str) -> str:
    if text.lower() != "fixeddelay":
        raise ValueError(f"{text!r} is not supported by the local host, only fixedDelay")
    return FIXED_DELAY


def _encoding(text: str) -> MessageEncoding:
    try:
        return MessageEncoding(text.lower())
    except ValueError:
        raise ValueError(f"{text!r} is neither base64 nor none") from None


def _timeout(text: str | None) -> float | None:
    if text is None:
        return DEFAULT_FUNCTION_TIMEOUT_SECONDS
    return None if text == "-1" else time_span(text).total_seconds()
