"""Operations of a Service Bus entity's `$management` node.

Source: learn.microsoft.com/azure/service-bus-messaging/service-bus-amqp-request-response.
"""

from typing import Any
from uuid import UUID

from proton import Array, Data

from local.amqp_broker.broker import Broker
from local.amqp_broker.messages import array, content_of, text_keys, to_timestamp
from local.amqp_broker.model.errors import NotSupported
from local.amqp_broker.requests import Handler, ManagementAnswer, ManagementRequest, answer_with

PREFIX = "com.microsoft:"


def handler(broker: Broker, path: str) -> Handler:
    """A handler for requests about the entity at `path`."""

    def answer(request: ManagementRequest) -> ManagementAnswer:
        name = request.operation.removeprefix(PREFIX)
        if name not in _OPERATIONS:
            raise NotSupported(f"the operation '{name}'")
        return _OPERATIONS[name](broker, path, request.body)

    return answer


def _schedule(broker: Broker, path: str, body: dict[str, Any]) -> ManagementAnswer:
    contents = [content_of(bytes(text_keys(each)["message"])) for each in body["messages"]]
    numbers = broker.namespace.send(path, contents, broker.now())
    return answer_with({"sequence-numbers": array(Data.LONG, numbers)})


def _update_disposition(broker: Broker, path: str, body: dict[str, Any]) -> ManagementAnswer:
    store = broker.namespace.store(path)
    now = broker.now()
    tokens = _tokens(body)
    for token in tokens:  # Check every lock first: the request settles all messages or none.
        store.locked(token, now)
    for token in tokens:
        match str(body["disposition-status"]):
            case "completed":
                store.complete(token, now)
            case "abandoned":
                store.abandon(token, now)
            case "suspended":
                reason, text = body.get("deadletter-reason"), body.get("deadletter-description")
                store.dead_letter(token, now, reason, text)
            case other:
                raise NotSupported(f"the disposition '{other}'")
    return ManagementAnswer()


def _renew_lock(broker: Broker, path: str, body: dict[str, Any]) -> ManagementAnswer:
    store = broker.namespace.store(path)
    ends = [to_timestamp(store.renew(token, broker.now())) for token in _tokens(body)]
    return answer_with({"expirations": array(Data.TIMESTAMP, ends)})


def _renew_session(broker: Broker, path: str, body: dict[str, Any]) -> ManagementAnswer:
    store = broker.namespace.store(path)
    store.advance(broker.now())
    until = store.renew_session(store.sessions.held(str(body["session-id"])), broker.now())
    return answer_with({"expiration": to_timestamp(until)})


_OPERATIONS = {
    "schedule-message": _schedule,
    "update-disposition": _update_disposition,
    "renew-lock": _renew_lock,
    "renew-session-lock": _renew_session,
}


def _tokens(body: dict[str, Any]) -> list[UUID]:
    return [
        token if isinstance(token, UUID) else UUID(token) for token in _items(body["lock-tokens"])
    ]


def _items(values: Any) -> list[Any]:
    return list(values.elements if isinstance(values, Array) else values)
