"""The model of sessions in the AMQP stand-in."""

from datetime import UTC, datetime, timedelta

import pytest

from local.amqp_broker.model.errors import (
    NotAllowed,
    SessionCannotBeLocked,
    SessionLockLost,
)
from local.amqp_broker.model.message import Content, Message
from local.amqp_broker.model.namespace import Namespace
from local.amqp_broker.model.properties import QueueProperties
from local.amqp_broker.model.sessions import SessionLock
from local.amqp_broker.model.store import Store

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
LOCK = timedelta(seconds=30)


@pytest.fixture
def store() -> Store:
    """A store with the messages a1, b1, a2, b2. The letter is the session."""
    namespace = Namespace()
    properties = QueueProperties(requires_session=True, lock_duration=LOCK)
    namespace.declare_queue("jobs", properties)
    names = ("a1", "b1", "a2", "b2")
    contents = [Content(name.encode(), session_id=name[0]) for name in names]
    namespace.send("jobs", contents, NOW)
    with pytest.raises(NotAllowed):
        namespace.send("jobs", [Content(b"without")], NOW)
    return namespace.store("jobs")


def accepted(store: Store, session_id: str | None = None, now: datetime = NOW) -> SessionLock:
    lock = store.accept_session(now, session_id)
    assert lock is not None
    return lock


def received(store: Store, lock: SessionLock, now: datetime = NOW) -> Message:
    message = store.receive(now, lock)
    assert message is not None
    return message


def test_a_session_returns_only_its_own_messages_in_order(store: Store) -> None:
    lock = accepted(store, "b")
    bodies = [received(store, lock).content.payload for _ in range(2)]
    assert bodies == [b"b1", b"b2"]
    assert store.receive(NOW, lock) is None


def test_the_free_session_with_the_oldest_message_is_accepted_first(store: Store) -> None:
    assert accepted(store).session_id == "a"
    assert accepted(store).session_id == "b"
    assert store.accept_session(NOW) is None


def test_a_session_has_one_receiver_at_a_time(store: Store) -> None:
    accepted(store, "a")
    with pytest.raises(SessionCannotBeLocked):
        store.accept_session(NOW, "a")
    assert accepted(store, "a", NOW + LOCK).session_id == "a"


def test_receiving_without_a_session_is_refused(store: Store) -> None:
    with pytest.raises(NotAllowed):
        store.receive(NOW)


def test_an_empty_session_can_be_locked_by_name(store: Store) -> None:
    assert store.receive(NOW, accepted(store, "new")) is None


def test_a_queue_without_sessions_refuses_session_receivers() -> None:
    namespace = Namespace()
    namespace.declare_queue("jobs")
    with pytest.raises(NotAllowed):
        namespace.store("jobs").accept_session(NOW, "a")


def test_closing_a_session_does_not_count_as_a_failed_delivery(store: Store) -> None:
    lock = accepted(store, "a")
    received(store, lock)
    store.release_session(lock, NOW)
    assert received(store, accepted(store, "a")).delivery_count == 0


def test_losing_a_session_lock_counts_as_a_failed_delivery(store: Store) -> None:
    received(store, accepted(store, "a"))
    lock = accepted(store, "a", NOW + LOCK)
    assert received(store, lock, NOW + LOCK).delivery_count == 1


def test_a_lost_session_lock_can_neither_settle_nor_receive(store: Store) -> None:
    lock = accepted(store, "a")
    message = received(store, lock)
    assert message.lock is not None
    token = message.lock.token
    late = NOW + LOCK
    with pytest.raises(SessionLockLost):
        store.complete(token, late)
    with pytest.raises(SessionLockLost):
        store.receive(late, lock)
    with pytest.raises(SessionLockLost):
        store.renew_session(lock, late)


def test_renewing_a_session_extends_the_locks_of_its_messages(store: Store) -> None:
    lock = accepted(store, "a")
    message = received(store, lock)
    assert message.lock is not None
    later = NOW + timedelta(seconds=20)
    assert store.renew_session(lock, later) == later + LOCK
    assert message.locked_until == later + LOCK
    store.complete(message.lock.token, later + LOCK - timedelta(seconds=1))
    with pytest.raises(NotAllowed):
        store.renew(received(store, lock, later).lock.token, later)  # type: ignore[union-attr]
