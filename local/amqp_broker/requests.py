"""Request/response nodes: `$cbs` and `$management`.

Sources: AMQP Management 1.0 working draft and AMQP Claims-based Security 1.0 (OASIS). The
operations are in management_bus and management_hub.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from proton import Delivery, Message, ProtonException, int32, symbol

from local.amqp_broker.messages import text_keys
from local.amqp_broker.model.errors import BrokerError, InvalidArgument
from local.amqp_broker.peer import Peer, condition, condition_of, status_of
from local.amqp_broker.sources import ReplySource


@dataclass(frozen=True, slots=True)
class ManagementRequest:
    """`properties` and `body` have strings as keys. `body` is empty if it was not a map, and `text`
    is empty if the body was not a text."""

    properties: dict[str, Any]
    body: dict[str, Any]
    text: str = field(default="", repr=False)

    @property
    def operation(self) -> str:
        return str(self.properties.get("operation", ""))


@dataclass(frozen=True, slots=True)
class ManagementAnswer:
    """A response; `status` is an HTTP status code."""

    status: int = 200
    body: Any = field(default_factory=dict)
    description: str = "OK"
    condition: str | None = None


Handler = Callable[[ManagementRequest], ManagementAnswer]


def answer_with(body: dict[str, Any]) -> ManagementAnswer:
    return ManagementAnswer(body={symbol(name): value for name, value in body.items()})


class RequestTarget:
    """Receives requests and answers each on the reply link of the same session."""

    def __init__(
        self, peer: Peer, handler: Handler, reply_link: Callable[[], ReplySource | None]
    ) -> None:
        self._peer = peer
        self._handler = handler
        self._reply_link = reply_link

    def on_transfer(self, delivery: Delivery, encoded: bytes, _message_format: int) -> None:
        message = Message()
        try:
            message.decode(encoded)
        except (ProtonException, UnicodeDecodeError) as error:
            delivery.local.condition = condition("amqp:decode-error", str(error))
            delivery.update(Delivery.REJECTED)
            delivery.settle()
            return
        delivery.update(Delivery.ACCEPTED)
        delivery.settle()
        reply_link = self._reply_link()
        if reply_link is not None:
            reply_link.send(_reply(message, self._answer(message)))
        self._peer.shared.changed()

    def _answer(self, message: Message) -> ManagementAnswer:
        text = message.body if isinstance(message.body, str) else ""
        request = ManagementRequest(text_keys(message.properties), text_keys(message.body), text)
        try:
            return self._handler(request)
        except BrokerError as error:
            return ManagementAnswer(status_of(error), None, str(error), condition_of(error))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            refused = InvalidArgument(f"{request.operation}: {type(error).__name__}: {error}")
            return ManagementAnswer(status_of(refused), None, str(refused), condition_of(refused))


def _reply(request: Message, answer: ManagementAnswer) -> Message:
    """The status is sent under both names that clients use, with and without a hyphen."""
    properties: dict[str, Any] = {
        "status-code": int32(answer.status),
        "statusCode": int32(answer.status),
        "status-description": answer.description,
        "statusDescription": answer.description,
    }
    if answer.condition is not None:
        properties["errorCondition"] = answer.condition
        properties["error-condition"] = answer.condition
    return Message(
        body=answer.body,
        address=request.reply_to,
        correlation_id=request.id,
        properties=properties,
    )
