"""Parses link addresses, and the filters and properties that a receiver sends when it attaches.

Source: learn.microsoft.com/azure/service-bus-messaging/service-bus-amqp-protocol-guide. Positions
in a partition follow the selector that azure-eventhub writes (`EventPosition`).
"""

import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

from proton import Link, Terminus

from local.amqp_broker.messages import from_milliseconds, text_keys
from local.amqp_broker.model.errors import InvalidArgument
from local.amqp_broker.model.hub import START, Position, PositionKind

CBS = "$cbs"
MANAGEMENT = "$management"
SESSION_FILTER = "com.microsoft:session-filter"
SELECTOR_FILTER = "apache.org:selector-filter:string"
OWNER_LEVEL = "com.microsoft:epoch"
TIMEOUT_MILLISECONDS = "com.microsoft:timeout"

_READER = re.compile(r"(.+?)/consumergroups/([^/]+)/partitions/([^/]+)", re.IGNORECASE)
_WRITER = re.compile(r"(.+?)/partitions/([^/]+)", re.IGNORECASE)
_SELECTOR = re.compile(
    r"amqp\.annotation\.x-opt-(offset|sequence-number|enqueued-time)\s*(>=?)\s*'?([^']*)'?"
)


@dataclass(frozen=True, slots=True)
class ReaderAddress:
    """A partition as read by one consumer group."""

    hub: str
    consumer_group: str
    partition_id: str


def path_of(address: str | None) -> str:
    """The entity path of an address, which is a path or a URL."""
    address = address or ""
    return unquote(urlsplit(address).path if "://" in address else address).strip("/")


def reader_address(path: str) -> ReaderAddress | None:
    match = _READER.fullmatch(path)
    return ReaderAddress(*match.groups()) if match else None


def writer_address(path: str) -> tuple[str, str | None]:
    """Hub and partition id. The id is None if the path names no partition."""
    match = _WRITER.fullmatch(path)
    return (match[1], match[2]) if match else (path, None)


def link_properties(link: Link) -> dict[str, Any]:
    return text_keys(dict(link.remote_properties or {}))


def filters(terminus: Terminus) -> dict[str, Any]:
    """Filters by name. A described filter is reduced to its value."""
    data = terminus.filter
    data.rewind()
    if not data.next():
        return {}
    values = text_keys(data.get_object())
    return {name: getattr(value, "value", value) for name, value in values.items()}


def position(selector: object) -> Position:
    """The position where reading begins. Without a selector, that is the start."""
    if selector is None:
        return START
    match = _SELECTOR.fullmatch(_text(selector).strip())
    if match is None:
        raise InvalidArgument(f"selector {selector!r}")
    kind, inclusive, value = PositionKind(match[1]), match[2] == ">=", match[3].strip()
    if value == "@latest":
        return Position(PositionKind.LATEST)
    try:
        number = int(value)
    except ValueError:
        raise InvalidArgument(f"selector {selector!r}") from None
    if kind is PositionKind.ENQUEUED_TIME:
        return Position(kind, from_milliseconds(number), inclusive)
    return Position(kind, number, inclusive)


def _text(value: object) -> str:
    return bytes(value).decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
