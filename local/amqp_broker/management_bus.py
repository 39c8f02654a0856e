"""Operations of a Service Bus entity's `$management` node.

Source: learn.microsoft.com/azure/service-bus-messaging/service-bus-amqp-request-response.
"""

from typing import Any
from uuid import UUID

from proton import Array, Data, symbol

from local.amqp_broker.broker import Broker
from local.amqp_broker.messages import array, content_of, delivered, text_keys, to_timestamp
from local.amqp_broker.model.entities import Queue
from local.amqp_broker.model.errors import InvalidArgument
from local.amqp_broker.model.message import Message
from local.amqp_broker.model.sessions import SessionLock
from local.amqp_broker.model.store import Store
from local.amqp_broker.requests import Answer, Handler, Request

PREFIX = "com.microsoft:"
NO_CONTENT = Answer(204, None, "No Content")


def handler(broker: Broker, path: str) -> Handler:
    """Answers requests about one entity."""

    def answer(request: Request) -> Answer:
        operation = _OPERATIONS.get(request.operation.removeprefix(PREFIX))
        if operation is None:
            return Answer(501, None, f"'{request.operation}' is not implemented here")
        return operation(broker, path, request.body)

    return answer


def _schedule(broker: Broker, path: str, body: dict[str, Any]) -> Answer:
    contents = [content_of(bytes(text_keys(each)["message"])) for each in body["messages"]]
    numbers = broker.namespace.send(path, contents, broker.now())
    return _answer({"sequence-numbers": array(Data.LONG, numbers)})


def _cancel(broker: Broker, path: str, body: dict[str, Any]) -> Answer:
    broker.namespace.cancel_scheduled(path, _numbers(body), broker.now())
    return Answer()


def _peek(broker: Broker, path: str, body: dict[str, Any]) -> Answer:
    broker.advance()
    store = broker.namespace.store(path)
    queue = broker.namespace.queue_of(store)
    found = store.peek(
        int(body["from-sequence-number"]),
        int(body["message-count"]),
        broker.now(),
        queue.intake.scheduled if isinstance(queue, Queue) else (),
        body.get("session-id"),
    )
    if not found:
        return NO_CONTENT
    return _answer({"messages": [_entry(message, peeked=True) for message in found]})


def _receive_deferred(broker: Broker, path: str, body: dict[str, Any]) -> Answer:
    store = broker.namespace.store(path)
    delete = int(body.get("receiver-settle-mode", 1)) == 0
    messages = store.receive_deferred(
        _numbers(body), broker.now(), _session(store, body), delete=delete
    )
    return _answer({"messages": [_entry(message) for message in messages]})


def _update_disposition(broker: Broker, path: str, body: dict[str, Any]) -> Answer:
    store = broker.namespace.store(path)
    now = broker.now()
    tokens = _tokens(body)
    for token in tokens:  # all of them or none
        store.locked(token, now)
    for token in tokens:
        match str(body["disposition-status"]):
            case "completed":
                store.complete(token, now)
            case "abandoned":
                store.abandon(token, now)
            case "defered":  # spelled so in the protocol
                store.defer(token, now)
            case "suspended":
                reason, text = body.get("deadletter-reason"), body.get("deadletter-description")
                store.dead_letter(token, now, reason, text)
            case other:
                raise InvalidArgument(f"disposition '{other}'")
    return Answer()


def _renew_lock(broker: Broker, path: str, body: dict[str, Any]) -> Answer:
    store = broker.namespace.store(path)
    ends = [to_timestamp(store.renew(token, broker.now())) for token in _tokens(body)]
    return _answer({"expirations": array(Data.TIMESTAMP, ends)})


def _renew_session(broker: Broker, path: str, body: dict[str, Any]) -> Answer:
    store = broker.namespace.store(path)
    store.advance(broker.now())
    until = store.renew_session(store.sessions.held(str(body["session-id"])), broker.now())
    return _answer({"expiration": to_timestamp(until)})


def _get_state(broker: Broker, path: str, body: dict[str, Any]) -> Answer:
    store = broker.namespace.store(path)
    session = _session(store, body)
    return _answer({"session-state": None if session is None else _state(store, session)})


def _set_state(broker: Broker, path: str, body: dict[str, Any]) -> Answer:
    store = broker.namespace.store(path)
    store.advance(broker.now())
    session_id = store.sessions.held(str(body["session-id"])).session_id
    state = body.get("session-state")
    store.sessions.set_state(session_id, None if state is None else bytes(state))
    return Answer()


_OPERATIONS = {
    "schedule-message": _schedule,
    "cancel-scheduled-message": _cancel,
    "peek-message": _peek,
    "receive-by-sequence-number": _receive_deferred,
    "update-disposition": _update_disposition,
    "renew-lock": _renew_lock,
    "renew-session-lock": _renew_session,
    "get-session-state": _get_state,
    "set-session-state": _set_state,
}


def _session(store: Store, body: dict[str, Any]) -> SessionLock | None:
    session_id = body.get("session-id")
    return None if session_id is None else store.sessions.held(str(session_id))


def _state(store: Store, session: SessionLock) -> bytes | None:
    return store.sessions.state(session.session_id)


def _entry(message: Message, *, peeked: bool = False) -> dict[Any, Any]:
    entry: dict[Any, Any] = {symbol("message"): delivered(message, peeked=peeked)}
    if message.lock is not None and not peeked:
        entry[symbol("lock-token")] = message.lock.token
    return entry


def _answer(body: dict[str, Any]) -> Answer:
    return Answer(body={symbol(name): value for name, value in body.items()})


def _numbers(body: dict[str, Any]) -> list[int]:
    return [int(number) for number in _items(body["sequence-numbers"])]


def _tokens(body: dict[str, Any]) -> list[UUID]:
    return [
        token if isinstance(token, UUID) else UUID(token) for token in _items(body["lock-tokens"])
    ]


def _items(values: Any) -> list[Any]:
    return list(values.elements if isinstance(values, Array) else values)
