"""An expired message of the stand-in is removed or becomes a dead letter, never while locked."""

from datetime import UTC, datetime, timedelta

import pytest

from local.amqp_broker.model.message import Content
from local.amqp_broker.model.namespace import Namespace
from local.amqp_broker.model.properties import QueueProperties

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


@pytest.mark.parametrize("kept", [False, True])
def test_a_message_expires_but_not_while_it_is_locked(kept: bool) -> None:
    namespace = Namespace()
    rules = QueueProperties(
        time_to_live=MINUTE, dead_letters_expired=kept, lock_duration=2 * MINUTE
    )
    namespace.declare_queue("jobs", rules)
    store, dead = namespace.store("jobs"), namespace.store("jobs/$deadletterqueue")
    namespace.send("jobs", [Content(b"locked"), Content(b"waiting")], NOW)
    locked = store.receive(NOW)
    store.advance(NOW + MINUTE)
    assert locked is not None
    assert locked.lock is not None
    assert [each.content.payload for each in store.messages] == [b"locked"]
    store.release(locked.lock.token, NOW + MINUTE)
    assert [*store.messages] == []
    dead.advance(NOW + 9 * MINUTE)
    assert len(dead) == (2 if kept else 0)
