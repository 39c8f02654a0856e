"""host.json: what of it acts locally, read once, every mistake reported together."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from local.functions_host.errors import HostStartFailed
from local.functions_host.message_encoding import MessageEncoding
from local.functions_host.time_span import parse_time_span

# What the host allows on every plan but Consumption, where it is 5 minutes.
DEFAULT_FUNCTION_TIMEOUT_SECONDS = 30 * 60.0
_RECEIVE_LIMIT = 32  # messages in one receive call, by the storage service

Parsed = TypeVar("Parsed")


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """host.json's `extensions.queues`; the defaults are the host's."""

    batch_size: int = 16
    new_batch_threshold: int = 8
    max_dequeue_count: int = 5
    visibility_timeout_seconds: int = 0
    max_polling_interval_seconds: float = 60.0
    message_encoding: MessageEncoding = MessageEncoding.BASE64


@dataclass(frozen=True, slots=True)
class HostConfig:
    """The part of host.json that the local host acts on."""

    queues: QueueOptions = field(default_factory=QueueOptions)
    route_prefix: str = "api"
    function_timeout_seconds: float | None = DEFAULT_FUNCTION_TIMEOUT_SECONDS


def read_host_json(app_dir: Path) -> HostConfig:
    """Read `app_dir`/host.json. A file that is missing gives the defaults."""
    path = app_dir / "host.json"
    if not path.is_file():
        return HostConfig()
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise HostStartFailed(f"{path}: {error}") from error
    return parse_host_json(document)


def parse_host_json(document: Mapping[str, Any]) -> HostConfig:
    """Parse and check a host.json document, or raise `HostStartFailed` naming every mistake."""
    reader = _Reader(document)
    config = HostConfig(
        queues=_queues(reader),
        route_prefix=reader.text("extensions.http.routePrefix", "api").strip("/"),
        function_timeout_seconds=reader.parsed("functionTimeout", _timeout, None),
    )
    if reader.mistakes:
        raise HostStartFailed("host.json: " + "; ".join(reader.mistakes))
    return config


def _queues(reader: "_Reader") -> QueueOptions:
    section = "extensions.queues"
    batch_size = reader.whole(f"{section}.batchSize", 16, (1, _RECEIVE_LIMIT))
    threshold = reader.whole(f"{section}.newBatchThreshold", batch_size // 2, (0, 1000))
    hidden = reader.parsed(f"{section}.visibilityTimeout", parse_time_span, "00:00:00")
    polling = reader.parsed(f"{section}.maxPollingInterval", parse_time_span, "00:01:00")
    return QueueOptions(
        batch_size=batch_size,
        new_batch_threshold=threshold,
        max_dequeue_count=reader.whole(f"{section}.maxDequeueCount", 5, (1, 1000)),
        visibility_timeout_seconds=int(hidden.total_seconds()),
        max_polling_interval_seconds=polling.total_seconds(),
        message_encoding=reader.parsed(f"{section}.messageEncoding", _encoding, "base64"),
    )


def _encoding(text: str) -> MessageEncoding:
    try:
        return MessageEncoding(text.lower())
    except ValueError:
        raise ValueError(f"{text!r} is neither base64 nor none") from None


def _timeout(text: str | None) -> float | None:
    if text is None:
        return DEFAULT_FUNCTION_TIMEOUT_SECONDS
    return None if text == "-1" else parse_time_span(text).total_seconds()


class _Reader:
    """Looks dotted keys up and collects what is wrong with their values."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document
        self.mistakes: list[str] = []

    def whole(self, key: str, default: int, bounds: tuple[int, int]) -> int:
        value = self._value(key, default)
        low, high = bounds
        if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
            return value
        self.mistakes.append(f"{key} is {value!r}, expected a whole number {low} to {high}")
        return default

    def text(self, key: str, default: str) -> str:
        value = self._value(key, default)
        if isinstance(value, str):
            return value
        self.mistakes.append(f"{key} is {value!r}, expected a text")
        return default

    def parsed(self, key: str, parse: Callable[[Any], Parsed], default: str | None) -> Parsed:
        value = self._value(key, default)
        try:
            if value is None or isinstance(value, str):
                return parse(value or default)
            raise ValueError(f"{value!r} is not a text")
        except ValueError as error:
            self.mistakes.append(f"{key}: {error}")
            return parse(default)

    def _value(self, key: str, default: Any) -> Any:
        value: Any = self._document
        for part in key.split("."):
            if not isinstance(value, Mapping) or part not in value:
                return default
            value = value[part]
        return value
