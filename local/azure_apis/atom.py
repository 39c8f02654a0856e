"""The Atom XML in which Service Bus describes its entities. Pure."""

import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from xml.sax.saxutils import escape, quoteattr

from local.azure_apis.entities import Entity, EntityCounts, Kind

ATOM = "http://www.w3.org/2005/Atom"
SERVICE_BUS = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
COUNTS = "http://schemas.microsoft.com/netservices/2011/06/servicebus"

FOREVER = "P10675199DT2H48M5.4775807S"

# What the service fills in for properties that a description leaves out.
_QUEUE_AND_TOPIC = {
    "MaxSizeInMegabytes": "1024",
    "RequiresDuplicateDetection": "false",
    "DuplicateDetectionHistoryTimeWindow": "PT10M",
    "DefaultMessageTimeToLive": FOREVER,
    "EnableBatchedOperations": "true",
    "Status": "Active",
    "SupportOrdering": "true",
    "AutoDeleteOnIdle": FOREVER,
    "EnablePartitioning": "false",
    "EntityAvailabilityStatus": "Available",
    "EnableExpress": "false",
}
_RECEIVABLE = {
    "LockDuration": "PT1M",
    "RequiresSession": "false",
    "DeadLetteringOnMessageExpiration": "false",
    "MaxDeliveryCount": "10",
}
DEFAULTS: Mapping[Kind, Mapping[str, str]] = {
    Kind.QUEUE: _RECEIVABLE | _QUEUE_AND_TOPIC,
    Kind.TOPIC: _QUEUE_AND_TOPIC,
    Kind.SUBSCRIPTION: _RECEIVABLE
    | {
        "DeadLetteringOnFilterEvaluationExceptions": "true",
        "DefaultMessageTimeToLive": FOREVER,
        "EnableBatchedOperations": "true",
        "Status": "Active",
        "AutoDeleteOnIdle": FOREVER,
        "EntityAvailabilityStatus": "Available",
    },
}


class NotADescription(Exception):
    """The body is not an Atom entry that describes a queue, a topic or a subscription."""


def read_description(body: bytes) -> tuple[Kind, str]:
    """What kind of entity a PUT describes, and the description element as it stands there."""
    try:
        element = ET.fromstring(body).find(f"{{{ATOM}}}content/*")  # noqa: S314  # nosec B314
    except ET.ParseError as error:
        raise NotADescription(f"not XML: {error}") from None
    if element is None:
        raise NotADescription("no content in the entry")
    for kind in Kind:
        if element.tag == _tag(kind.value):
            return kind, ET.tostring(element, encoding="unicode")
    raise NotADescription(f"{element.tag} is no entity")


def new_description(kind: Kind, properties: Mapping[str, str]) -> str:
    element = ET.Element(_tag(kind.value))
    for name, value in properties.items():
        ET.SubElement(element, _tag(name)).text = value
    return ET.tostring(element, encoding="unicode")


def entry(entity: Entity, counts: EntityCounts, subscription_count: int, base_url: str) -> str:
    """One entity: its properties as put, defaults for the others, and runtime figures."""
    url = f"{base_url}/{entity.path}"
    return (
        f'<entry xmlns="{ATOM}"><id>{escape(url)}</id>'
        f'<title type="text">{escape(entity.title)}</title>'
        f"<published>{_time(entity.created)}</published>"
        f"<updated>{_time(entity.updated)}</updated>"
        f"<author><name>stand-in</name></author>"
        f'<link rel="self" href={quoteattr(url)}/>'
        f'<content type="application/xml">'
        f"{_description(entity, counts, subscription_count)}</content></entry>"
    )


def feed(title: str, url: str, entries: Sequence[str], next_url: str | None = None) -> str:
    """A list. Without entries it is also what the service answers for an entity not found."""
    next_link = "" if next_url is None else f'<link rel="next" href={quoteattr(next_url)}/>'
    return (
        f'<feed xmlns="{ATOM}"><title type="text">{escape(title)}</title>'
        f"<id>{escape(url)}</id>"
        f'<link rel="self" href={quoteattr(url)}/>{next_link}{"".join(entries)}</feed>'
    )


def error(status: int, detail: str) -> str:
    return f"<Error><Code>{status}</Code><Detail>{escape(detail)}</Detail></Error>"


def _description(entity: Entity, counts: EntityCounts, subscription_count: int) -> str:
    element = ET.fromstring(entity.description)  # noqa: S314  # nosec B314
    runtime = _runtime(entity, counts, subscription_count)
    for name in (*runtime, "CountDetails"):
        for stale in element.findall(_tag(name)):
            element.remove(stale)
    for name, value in DEFAULTS[entity.kind].items():
        if element.find(_tag(name)) is None:
            ET.SubElement(element, _tag(name)).text = value
    for name, value in runtime.items():
        ET.SubElement(element, _tag(name)).text = value
    element.append(_count_details(counts))
    return ET.tostring(element, encoding="unicode")


def _runtime(entity: Entity, counts: EntityCounts, subscription_count: int) -> dict[str, str]:
    runtime = {
        "CreatedAt": _time(entity.created),
        "UpdatedAt": _time(entity.updated),
        "AccessedAt": _time(entity.updated),
    }
    if entity.kind is Kind.TOPIC:
        return runtime | {"SizeInBytes": "0", "SubscriptionCount": str(subscription_count)}
    size = {"SizeInBytes": "0"} if entity.kind is Kind.QUEUE else {}
    return runtime | size | {"MessageCount": str(counts.total)}


def _count_details(counts: EntityCounts) -> ET.Element:
    details = ET.Element(_tag("CountDetails"))
    for name, value in (
        ("ActiveMessageCount", counts.active),
        ("DeadLetterMessageCount", counts.dead_letter),
        ("ScheduledMessageCount", counts.scheduled),
        ("TransferDeadLetterMessageCount", counts.transfer_dead_letter),
        ("TransferMessageCount", counts.transfer),
    ):
        ET.SubElement(details, f"{{{COUNTS}}}{name}").text = str(value)
    return details


def _tag(name: str) -> str:
    return f"{{{SERVICE_BUS}}}{name}"


def _time(time: datetime) -> str:
    return time.astimezone(UTC).isoformat().replace("+00:00", "Z")
