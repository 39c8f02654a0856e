"""Between the properties of the broker's entities and their descriptions in Atom XML. Pure."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from datetime import timedelta
from urllib.parse import unquote, urlsplit

from local.amqp.model.errors import InvalidProperties
from local.amqp.model.properties import QueueProperties, TopicProperties
from local.stand_ins import atom
from local.stand_ins.entities import Kind

_DURATION = re.compile(
    r"P(?:(?P<days>\d+)D)?"
    r"(?:T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?"
)
FOREVER = timedelta(days=10_675_199)
"""What the service calls for ever: the longest duration that .NET can express, in days."""


def queue_properties(kind: Kind, description: str) -> QueueProperties:
    """Of a queue or a subscription. InvalidProperties for what cannot be."""
    told = _properties(kind, description)
    return QueueProperties(
        lock_duration=duration(told["LockDuration"]),
        max_delivery_count=_number(told["MaxDeliveryCount"]),
        requires_session=_flag(told, "RequiresSession"),
        duplicate_window=_duplicate_window(told),
        forward_to=_path(told.get("ForwardTo")),
        time_to_live=_lifetime(told),
        dead_letters_expired=_flag(told, "DeadLetteringOnMessageExpiration"),
    )


def topic_properties(description: str) -> TopicProperties:
    told = _properties(Kind.TOPIC, description)
    return TopicProperties(duplicate_window=_duplicate_window(told), time_to_live=_lifetime(told))


def describe_queue(kind: Kind, properties: QueueProperties) -> str:
    told = {
        "LockDuration": written(properties.lock_duration),
        "RequiresSession": _written_flag(properties.requires_session),
        "DefaultMessageTimeToLive": _written_lifetime(properties.time_to_live),
        "DeadLetteringOnMessageExpiration": _written_flag(properties.dead_letters_expired),
        "MaxDeliveryCount": str(properties.max_delivery_count),
    }
    if properties.forward_to is not None:
        told["ForwardTo"] = properties.forward_to
    if kind is Kind.QUEUE:
        told |= _written_window(properties.duplicate_window)
    return atom.new_description(kind, told)


def describe_topic(properties: TopicProperties) -> str:
    lifetime = {"DefaultMessageTimeToLive": _written_lifetime(properties.time_to_live)}
    told = lifetime | _written_window(properties.duplicate_window)
    return atom.new_description(Kind.TOPIC, told)


def duration(text: str) -> timedelta:
    """ISO 8601 as far as the service writes it: days, hours, minutes, seconds."""
    match = _DURATION.fullmatch(text.strip())
    if match is None or not any(match.groups()):
        raise InvalidProperties(f"'{text}' is no duration")
    parts = {unit: float(value) for unit, value in match.groupdict().items() if value}
    try:
        return timedelta(**parts)
    except OverflowError:
        raise InvalidProperties(f"'{text}' is too long") from None


def written(length: timedelta) -> str:
    seconds = length.seconds + length.microseconds / 1_000_000
    return f"P{length.days}DT{seconds:.6f}".rstrip("0").rstrip(".") + "S"


def _properties(kind: Kind, description: str) -> Mapping[str, str]:
    element = ET.fromstring(description)  # noqa: S314  # nosec B314
    told = {child.tag.rpartition("}")[2]: (child.text or "").strip() for child in element}
    return {**atom.DEFAULTS[kind], **{name: text for name, text in told.items() if text}}


def _flag(told: Mapping[str, str], name: str) -> bool:
    return told.get(name, "false").lower() == "true"


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InvalidProperties(f"'{text}' is no whole number") from None


def _duplicate_window(told: Mapping[str, str]) -> timedelta | None:
    if not _flag(told, "RequiresDuplicateDetection"):
        return None
    return duration(told["DuplicateDetectionHistoryTimeWindow"])


def _lifetime(told: Mapping[str, str]) -> timedelta | None:
    lifetime = duration(told["DefaultMessageTimeToLive"])
    return None if lifetime >= FOREVER else lifetime


def _path(forward_to: str | None) -> str | None:
    """The client writes a URL where its user wrote a name."""
    if not forward_to:
        return None
    return unquote(urlsplit(forward_to).path if "://" in forward_to else forward_to).strip("/")


def _written_flag(flag: bool) -> str:
    return "true" if flag else "false"


def _written_lifetime(lifetime: timedelta | None) -> str:
    return atom.FOREVER if lifetime is None else written(lifetime)


def _written_window(window: timedelta | None) -> dict[str, str]:
    if window is None:
        return {"RequiresDuplicateDetection": "false"}
    return {
        "RequiresDuplicateDetection": "true",
        "DuplicateDetectionHistoryTimeWindow": written(window),
    }
