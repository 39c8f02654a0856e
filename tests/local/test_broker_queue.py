"""The model of queues in the AMQP stand-in: locks, settlement, lifetimes."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from local.amqp_broker.broker import Broker
from local.amqp_broker.management_bus import handler
from local.amqp_broker.model.errors import InvalidProperties, LockLost, NotAllowed
from local.amqp_broker.model.message import Content, Message
from local.amqp_broker.model.namespace import Namespace
from local.amqp_broker.model.properties import QueueProperties
from local.amqp_broker.model.store import Store
from local.amqp_broker.requests import ManagementRequest
from local.azure_apis.entities import EntityCounts

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
LOCK = timedelta(seconds=30)


def seconds(count: float) -> timedelta:
    return timedelta(seconds=count)


def bodies(*texts: str) -> list[Content]:
    return [Content(text.encode()) for text in texts]


def queue(**properties: object) -> Namespace:
    namespace = Namespace()
    declared = {"lock_duration": LOCK, **properties}
    namespace.declare_queue("jobs", QueueProperties(**declared))  # type: ignore[arg-type]
    return namespace


def received(store: Store, now: datetime = NOW) -> tuple[str, UUID]:
    message = store.receive(now)
    assert message is not None
    assert message.lock is not None
    return text(message), message.lock.token


def text(message: Message | None) -> str:
    assert message is not None
    return message.content.payload.decode()


def drained(store: Store, now: datetime = NOW) -> list[str]:
    texts = []
    while (message := store.receive_and_delete(now)) is not None:
        texts.append(text(message))
    return texts


class TestPeekLock:
    def test_messages_are_received_in_the_order_of_sending(self) -> None:
        namespace = queue()
        assert namespace.send("JOBS", bodies("a", "b"), NOW) == [1, 2]
        assert namespace.send("jobs", bodies("c"), NOW) == [3]
        assert drained(namespace.store("jobs")) == ["a", "b", "c"]

    def test_a_locked_message_is_not_delivered_until_its_lock_expires(self) -> None:
        namespace = queue()
        namespace.send("jobs", bodies("a"), NOW)
        store = namespace.store("jobs")
        received(store)
        assert store.receive(NOW + LOCK - seconds(0.001)) is None
        again = store.receive(NOW + LOCK)
        assert again is not None
        assert again.delivery_count == 1

    def test_an_expired_lock_cannot_settle_a_message(self) -> None:
        namespace = queue()
        namespace.send("jobs", bodies("a"), NOW)
        store = namespace.store("jobs")
        _, token = received(store)
        for settle in (store.complete, store.abandon, store.renew, store.release):
            with pytest.raises(LockLost):
                settle(token, NOW + LOCK)
        assert namespace.counts("jobs", NOW + LOCK) == EntityCounts(active=1)

    def test_a_message_can_be_settled_only_once(self) -> None:
        namespace = queue()
        namespace.send("jobs", bodies("a"), NOW)
        store = namespace.store("jobs")
        _, token = received(store)
        store.complete(token, NOW)
        with pytest.raises(LockLost):
            store.complete(token, NOW)
        assert namespace.counts("jobs", NOW) == EntityCounts()

    def test_renewing_extends_the_lock(self) -> None:
        namespace = queue()
        namespace.send("jobs", bodies("a"), NOW)
        store = namespace.store("jobs")
        _, token = received(store)
        later = NOW + seconds(20)
        assert store.renew(token, later) == later + LOCK
        assert store.receive(NOW + LOCK + seconds(1)) is None
        store.complete(token, later + LOCK - seconds(1))

    def test_an_abandoned_message_keeps_its_place_in_the_queue(self) -> None:
        namespace = queue()
        namespace.send("jobs", bodies("a", "b", "c"), NOW)
        store = namespace.store("jobs")
        _, first = received(store)
        received(store)
        store.abandon(first, NOW)
        assert drained(store) == ["a", "c"]

    def test_abandoning_counts_as_a_failed_delivery_and_releasing_does_not(self) -> None:
        namespace = queue()
        namespace.send("jobs", bodies("a"), NOW)
        store = namespace.store("jobs")
        store.release(received(store)[1], NOW)
        store.abandon(received(store)[1], NOW)
        message = store.receive(NOW)
        assert message is not None
        assert message.delivery_count == 1


@pytest.mark.parametrize(
    ("status", "left"),
    [
        ("completed", EntityCounts()),
        ("abandoned", EntityCounts(active=1)),
        ("suspended", EntityCounts(dead_letter=1)),
    ],
)
def test_a_client_without_a_link_can_settle_by_a_management_request(
    status: str, left: EntityCounts
) -> None:
    broker = Broker(lambda: NOW)
    broker.namespace.declare_queue("jobs")
    broker.namespace.send("jobs", bodies("a"), NOW)
    _, token = received(broker.namespace.store("jobs"))
    operation = {"operation": "com.microsoft:update-disposition"}
    ask = ManagementRequest(operation, {"disposition-status": status, "lock-tokens": [token]})
    assert handler(broker, "jobs")(ask).status == 200
    assert broker.namespace.counts("jobs", NOW) == left


class TestDeadLetters:
    def test_a_message_is_dead_lettered_after_its_last_failed_delivery(self) -> None:
        namespace = queue(max_delivery_count=2)
        namespace.send("jobs", bodies("a"), NOW)
        store = namespace.store("jobs")
        store.abandon(received(store)[1], NOW)
        received(store)
        store.advance(NOW + LOCK)
        assert namespace.counts("jobs", NOW + LOCK) == EntityCounts(dead_letter=1)
        dead = namespace.store("jobs/$deadletterqueue").receive(NOW + LOCK)
        assert dead is not None
        assert dead.dead_letter is not None
        assert (dead.dead_letter.reason, dead.dead_letter.source) == (
            "MaxDeliveryCountExceeded",
            "jobs",
        )
        assert (dead.sequence_number, dead.delivery_count) == (1, 2)

    def test_a_receiver_can_give_a_dead_letter_reason(self) -> None:
        namespace = queue()
        namespace.send("jobs", bodies("a"), NOW)
        store = namespace.store("jobs")
        store.dead_letter(received(store)[1], NOW, "why", "because")
        dead = namespace.store("jobs/$DeadLetterQueue")
        (message,) = dead.messages
        assert message.dead_letter is not None
        assert (message.dead_letter.reason, message.dead_letter.description) == ("why", "because")

    def test_dead_letters_have_no_delivery_limit_and_cannot_be_dead_lettered_again(self) -> None:
        namespace = queue(max_delivery_count=1)
        namespace.send("jobs", bodies("a"), NOW)
        namespace.store("jobs").abandon(received(namespace.store("jobs"))[1], NOW)
        dead = namespace.store("jobs/$DeadLetterQueue")
        for _ in range(5):
            dead.abandon(received(dead)[1], NOW)
        _, token = received(dead)
        with pytest.raises(NotAllowed):
            dead.dead_letter(token, NOW, None, None)
        dead.complete(token, NOW)
        assert namespace.counts("jobs", NOW) == EntityCounts()


class TestLifetimes:
    def test_the_shorter_of_two_lifetimes_applies(self) -> None:
        namespace = queue(time_to_live=seconds(60))
        lives = (seconds(10), seconds(100), None)
        namespace.send("jobs", [Content(b"", time_to_live=life) for life in lives], NOW)
        store = namespace.store("jobs")
        for after, left in ((9, 3), (10, 2), (59, 2), (60, 0)):
            store.advance(NOW + seconds(after))
            assert len(store) == left

    def test_an_expired_message_can_be_dead_lettered(self) -> None:
        namespace = queue(time_to_live=seconds(60), dead_letters_expired=True)
        namespace.send("jobs", bodies("a"), NOW)
        later = NOW + timedelta(days=9)
        assert namespace.counts("jobs", later) == EntityCounts(dead_letter=1)
        (dead,) = namespace.store("jobs/$deadletterqueue").messages
        assert dead.dead_letter is not None
        assert dead.dead_letter.reason == "TTLExpiredException"

    def test_a_message_does_not_expire_while_it_is_locked(self) -> None:
        namespace = queue(time_to_live=seconds(5))
        namespace.send("jobs", bodies("a", "b"), NOW)
        store = namespace.store("jobs")
        _, kept = received(store)
        _, lost = received(store)
        store.complete(kept, NOW + seconds(6))
        store.abandon(lost, NOW + seconds(6))
        assert len(store) == 0

    def test_a_lifetime_beyond_the_calendar_means_no_expiry(self) -> None:
        namespace = queue(time_to_live=timedelta.max)
        namespace.send("jobs", bodies("a"), NOW)
        assert namespace.counts("jobs", NOW + timedelta(days=99_999)) == EntityCounts(active=1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"lock_duration": timedelta(0)},
        {"lock_duration": timedelta(minutes=6)},
        {"max_delivery_count": 0},
        {"requires_session": True, "forward_to": "other"},
        {"duplicate_window": seconds(1)},
        {"duplicate_window": timedelta(days=8)},
        {"time_to_live": timedelta(0)},
        {"max_message_bytes": 0},
    ],
)
def test_invalid_properties_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidProperties):
        queue(**wrong)
