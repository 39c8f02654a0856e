"""Between the properties of the broker's entities and their descriptions in Atom XML. Pure."""

import xml.etree.ElementTree as ET
from collections.abc import Mapping
from datetime import timedelta
from urllib.parse import unquote, urlsplit

from local.amqp_broker.durations import FOREVER, duration, written
from local.amqp_broker.model.errors import InvalidProperties
from local.amqp_broker.model.properties import (
    STANDARD_MESSAGE_BYTES_MAX,
    QueueProperties,
    TopicProperties,
)
from local.amqp_broker.supported import check_supported
from local.azure_apis import atom
from local.azure_apis.entities import Kind


def queue_properties(kind: Kind, description: str) -> QueueProperties:
    """Of a queue or a subscription. InvalidProperties for what cannot be."""
    texts = _properties(kind, description)
    return QueueProperties(
        lock_duration=duration(texts["LockDuration"]),
        max_delivery_count=_number(texts["MaxDeliveryCount"]),
        requires_session=_flag(texts, "RequiresSession"),
        duplicate_window=_duplicate_window(texts),
        forward_to=_path(texts.get("ForwardTo")),
        time_to_live=_lifetime(texts),
        dead_letters_expired=_flag(texts, "DeadLetteringOnMessageExpiration"),
        max_message_bytes=_message_bytes(texts),
    )


def topic_properties(description: str) -> TopicProperties:
    texts = _properties(Kind.TOPIC, description)
    return TopicProperties(
        duplicate_window=_duplicate_window(texts),
        time_to_live=_lifetime(texts),
        max_message_bytes=_message_bytes(texts),
    )


def describe_queue(kind: Kind, properties: QueueProperties) -> str:
    texts = {
        "LockDuration": written(properties.lock_duration),
        "RequiresSession": _written_flag(properties.requires_session),
        "DefaultMessageTimeToLive": _written_lifetime(properties.time_to_live),
        "DeadLetteringOnMessageExpiration": _written_flag(properties.dead_letters_expired),
        "MaxDeliveryCount": str(properties.max_delivery_count),
    }
    if properties.forward_to is not None:
        texts["ForwardTo"] = properties.forward_to
    if kind is Kind.QUEUE:
        texts |= _written_window(properties.duplicate_window)
        texts |= _written_size(properties.max_message_bytes)
    return atom.new_description(kind, texts)


def describe_topic(properties: TopicProperties) -> str:
    lifetime = {"DefaultMessageTimeToLive": _written_lifetime(properties.time_to_live)}
    texts = lifetime | _written_window(properties.duplicate_window)
    texts |= _written_size(properties.max_message_bytes)
    return atom.new_description(Kind.TOPIC, texts)


def _properties(kind: Kind, description: str) -> Mapping[str, str]:
    element = ET.fromstring(description)  # noqa: S314  # nosec B314
    texts = {child.tag.rpartition("}")[2]: _text(child) for child in element}
    check_supported(kind, texts)
    return {**atom.DEFAULTS[kind], **{name: text for name, text in texts.items() if text}}


def _text(element: ET.Element) -> str:
    return (element.text or "").strip() or ", ".join(
        child.tag.rpartition("}")[2] for child in element
    )


def _flag(texts: Mapping[str, str], name: str) -> bool:
    return texts.get(name, "false").lower() == "true"


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InvalidProperties(f"'{text}' is no whole number") from None


def _duplicate_window(texts: Mapping[str, str]) -> timedelta | None:
    if not _flag(texts, "RequiresDuplicateDetection"):
        return None
    return duration(texts["DuplicateDetectionHistoryTimeWindow"])


def _message_bytes(texts: Mapping[str, str]) -> int:
    kilobytes = texts.get("MaxMessageSizeInKilobytes")
    return _number(kilobytes) * 1024 if kilobytes else STANDARD_MESSAGE_BYTES_MAX


def _lifetime(texts: Mapping[str, str]) -> timedelta | None:
    lifetime = duration(texts["DefaultMessageTimeToLive"])
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


def _written_size(max_bytes: int) -> dict[str, str]:
    """The Standard tier does not tell the size that all of its entities have."""
    if max_bytes == STANDARD_MESSAGE_BYTES_MAX:
        return {}
    return {"MaxMessageSizeInKilobytes": str(-(-max_bytes // 1024))}
