"""Writes the Atom XML in which Service Bus describes its entities. Pure."""

import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from xml.sax.saxutils import escape, quoteattr

from local.azure_apis.entities import Entity, EntityCounts, Kind

ATOM = "http://www.w3.org/2005/Atom"
SERVICE_BUS = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
COUNTS = "http://schemas.microsoft.com/netservices/2011/06/servicebus"

FOREVER = "P10675199DT2H48M5.4775807S"

# The service's defaults for properties that a description leaves out.
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


def entry(entity: Entity, now: datetime, base_url: str) -> str:
    """One entity: its properties, defaults for those left out, and message counts."""
    url = f"{base_url}/{entity.path}"
    return (
        f'<entry xmlns="{ATOM}"><id>{escape(url)}</id>'
        f'<title type="text">{escape(entity.title)}</title>'
        f"<published>{_time(now)}</published>"
        f"<updated>{_time(now)}</updated>"
        f"<author><name>stand-in</name></author>"
        f'<link rel="self" href={quoteattr(url)}/>'
        f'<content type="application/xml">{_description(entity, now)}</content></entry>'
    )


def feed(url: str, entries: Iterable[str] = (), next_url: str | None = None) -> str:
    """A page of a list. Without entries, it is also the answer for an entity that does not exist.

    The client takes the second link for the next page.
    """
    following = f'<link rel="next" href={quoteattr(next_url)}/>' if next_url else ""
    return (
        f'<feed xmlns="{ATOM}"><title type="text">Publicly Listed Services</title>'
        f'<id>{escape(url)}</id><link rel="self" href={quoteattr(url)}/>{following}'
        f"{''.join(entries)}</feed>"
    )


def error(status: int, detail: str) -> str:
    return f"<Error><Code>{status}</Code><Detail>{escape(detail)}</Detail></Error>"


def _description(entity: Entity, now: datetime) -> str:
    element = ET.Element(_tag(entity.kind.value))
    texts = {**DEFAULTS[entity.kind], **entity.properties, **_runtime(entity, now)}
    for name, value in texts.items():
        ET.SubElement(element, _tag(name)).text = value
    element.append(_count_details(entity.counts))
    return ET.tostring(element, encoding="unicode")


def _runtime(entity: Entity, now: datetime) -> dict[str, str]:
    runtime = {name: _time(now) for name in ("CreatedAt", "UpdatedAt", "AccessedAt")}
    if entity.kind is Kind.TOPIC:
        return runtime | {"SizeInBytes": "0", "SubscriptionCount": str(entity.subscription_count)}
    size = {"SizeInBytes": "0"} if entity.kind is Kind.QUEUE else {}
    return runtime | size | {"MessageCount": str(entity.counts.total)}


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
