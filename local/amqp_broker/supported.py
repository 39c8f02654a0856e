"""What of Service Bus this broker does, and what it refuses by name. Pure.

What is accepted and ignored would let a test pass that fails in Azure.
"""

from collections.abc import Mapping

from local.amqp_broker.durations import FOREVER, duration
from local.amqp_broker.model.errors import InvalidProperties, NotSupported
from local.azure_apis import atom
from local.azure_apis.entities import Kind

_RECEIVABLE = {
    "LockDuration",
    "MaxDeliveryCount",
    "RequiresSession",
    "ForwardTo",
    "DefaultMessageTimeToLive",
    "DeadLetteringOnMessageExpiration",
}
_SENDABLE = {
    "RequiresDuplicateDetection",
    "DuplicateDetectionHistoryTimeWindow",
    "DefaultMessageTimeToLive",
    "MaxMessageSizeInKilobytes",
}
_DONE: Mapping[Kind, set[str]] = {
    Kind.QUEUE: _RECEIVABLE | _SENDABLE,
    Kind.TOPIC: _SENDABLE,
    Kind.SUBSCRIPTION: _RECEIVABLE,
}
_WITHOUT_EFFECT = {
    # Nothing that a client could see depends on them here: messages always come in order, nothing
    # filters them, and nothing is written to a disk.
    "DeadLetteringOnFilterEvaluationExceptions",
    "EnableBatchedOperations",
    "SupportOrdering",
    "UserMetadata",
    # The service tells these; a client that updates an entity sends them back.
    "AccessedAt",
    "CountDetails",
    "CreatedAt",
    "MessageCount",
    "SizeInBytes",
    "SubscriptionCount",
    "UpdatedAt",
}


def not_supported(feature: str) -> NotSupported:
    """The refusal of something that a client may ask for and Azure has."""
    return NotSupported(f"This stand-in does not support {feature}.")


def check_supported(kind: Kind, texts: Mapping[str, str]) -> None:
    """InvalidProperties names the first property that the broker would have to ignore."""
    for name, text in texts.items():
        if name in _DONE[kind] or name in _WITHOUT_EFFECT or _is_default(kind, name, text):
            continue
        default = atom.DEFAULTS[kind].get(name)
        instead = f"only {default!r}" if default else "leave it out"
        raise InvalidProperties(f"{name} {text!r} is not supported by this stand-in: {instead}")


def _is_default(kind: Kind, name: str, text: str) -> bool:
    if name == "AutoDeleteOnIdle":
        return duration(text) >= FOREVER
    return text.lower() in ("", atom.DEFAULTS[kind].get(name, "false").lower())
