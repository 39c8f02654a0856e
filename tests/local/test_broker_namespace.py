"""The model of a namespace: names, duplicate detection, scheduling, forwarding, topics."""

from datetime import UTC, datetime, timedelta

import pytest

from local.amqp_broker.model.errors import EntityExists, EntityNotFound, NotAllowed
from local.amqp_broker.model.message import Content
from local.amqp_broker.model.namespace import Namespace
from local.amqp_broker.model.properties import QueueProperties, TopicProperties
from local.amqp_broker.model.store import Store
from local.azure_apis.entities import EntityCounts

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
WINDOW = timedelta(hours=48)


def hours(count: float) -> timedelta:
    return timedelta(hours=count)


def with_id(message_id: str, **rest: object) -> Content:
    return Content(message_id.encode(), message_id, **rest)  # type: ignore[arg-type]


def drained(store: Store, now: datetime = NOW) -> list[str]:
    payloads = []
    while (message := store.receive_and_delete(now)) is not None:
        payloads.append(message.content.payload.decode())
    return payloads


@pytest.fixture
def namespace() -> Namespace:
    return Namespace()


class TestNames:
    def test_names_ignore_case(self, namespace: Namespace) -> None:
        namespace.declare_queue("Jobs/Deep")
        assert namespace.entity("jobs/DEEP").path == "Jobs/Deep"
        with pytest.raises(EntityExists):
            namespace.declare_topic("JOBS/deep")

    def test_a_missing_entity_is_not_found(self, namespace: Namespace) -> None:
        namespace.declare_topic("news")
        for path in ("none", "none/$DeadLetterQueue", "news/subscriptions/none"):
            with pytest.raises(EntityNotFound):
                namespace.store(path)
        with pytest.raises(EntityNotFound):
            namespace.send("none", [Content(b"")], NOW)
        with pytest.raises(EntityNotFound):
            namespace.declare_subscription("none", "mail")

    def test_only_topics_accept_and_only_subscriptions_deliver_messages(
        self, namespace: Namespace
    ) -> None:
        namespace.declare_topic("news")
        namespace.declare_subscription("news", "mail")
        namespace.declare_queue("jobs")
        with pytest.raises(NotAllowed):
            namespace.store("news")
        with pytest.raises(NotAllowed):
            namespace.send("news/subscriptions/mail", [Content(b"")], NOW)
        with pytest.raises(NotAllowed):
            namespace.declare_subscription("jobs", "mail")


class TestDuplicates:
    def test_a_message_id_is_accepted_once_within_the_window(self, namespace: Namespace) -> None:
        namespace.declare_queue("jobs", QueueProperties(duplicate_window=WINDOW))
        for after in (hours(0), hours(1), WINDOW - hours(0.001)):
            namespace.send("jobs", [with_id("a")], NOW + after)
        assert namespace.counts("jobs", NOW + WINDOW).active == 1

    def test_a_duplicate_does_not_extend_the_window(self, namespace: Namespace) -> None:
        namespace.declare_queue("jobs", QueueProperties(duplicate_window=WINDOW))
        for after in (hours(0), hours(47), hours(48)):
            namespace.send("jobs", [with_id("a")], NOW + after)
        assert namespace.counts("jobs", NOW + WINDOW).active == 2

    def test_messages_without_an_id_are_never_duplicates(self, namespace: Namespace) -> None:
        namespace.declare_queue("jobs", QueueProperties(duplicate_window=WINDOW))
        namespace.send("jobs", [Content(b"a"), Content(b"a")], NOW)
        assert namespace.counts("jobs", NOW).active == 2

    def test_duplicates_within_one_batch_are_dropped(self, namespace: Namespace) -> None:
        namespace.declare_queue("jobs", QueueProperties(duplicate_window=WINDOW))
        namespace.send("jobs", [with_id("a"), with_id("b"), with_id("a")], NOW)
        assert drained(namespace.store("jobs")) == ["a", "b"]

    def test_without_duplicate_detection_every_message_is_accepted(
        self, namespace: Namespace
    ) -> None:
        namespace.declare_queue("jobs")
        namespace.send("jobs", [with_id("a"), with_id("a")], NOW)
        assert namespace.counts("jobs", NOW).active == 2

    def test_the_duplicate_window_of_a_scheduled_message_starts_when_it_is_sent(
        self, namespace: Namespace
    ) -> None:
        namespace.declare_queue("jobs", QueueProperties(duplicate_window=hours(1)))
        later = with_id("a", scheduled_for=NOW + hours(24))
        namespace.send("jobs", [later], NOW)
        namespace.send("jobs", [later], NOW + hours(0.5))
        assert namespace.counts("jobs", NOW + hours(0.5)) == EntityCounts(scheduled=1)
        namespace.send("jobs", [later], NOW + hours(1))
        assert namespace.counts("jobs", NOW + hours(24)) == EntityCounts(active=2)


class TestSchedules:
    def test_a_scheduled_message_becomes_active_when_due_with_a_new_sequence_number(
        self, namespace: Namespace
    ) -> None:
        namespace.declare_queue("jobs")
        (number,) = namespace.send("jobs", [with_id("a", scheduled_for=NOW + hours(1))], NOW)
        namespace.send("jobs", [with_id("b")], NOW)
        assert drained(namespace.store("jobs")) == ["b"]
        due = NOW + hours(1)
        assert namespace.counts("jobs", due) == EntityCounts(active=1)
        (message,) = namespace.store("jobs").messages
        assert message.sequence_number > number
        assert (message.enqueued_sequence_number, message.enqueued_at) == (number, due)

    def test_messages_that_become_due_together_are_ordered_by_due_time(
        self, namespace: Namespace
    ) -> None:
        namespace.declare_queue("jobs")
        namespace.declare_queue("feed", QueueProperties(forward_to="jobs"))
        for place, queue in ((3, "jobs"), (1, "feed"), (2, "jobs")):
            due = NOW + hours(place)
            namespace.send(queue, [with_id(str(place), scheduled_for=due)], NOW)
        namespace.advance(NOW + hours(100))
        assert drained(namespace.store("jobs"), NOW + hours(100)) == ["1", "2", "3"]

    def test_a_message_scheduled_for_the_past_is_active_at_once(self, namespace: Namespace) -> None:
        namespace.declare_queue("jobs")
        namespace.send("jobs", [with_id("a", scheduled_for=NOW)], NOW)
        assert namespace.counts("jobs", NOW) == EntityCounts(active=1)


class TestForwarding:
    def test_messages_are_forwarded_at_once(self, namespace: Namespace) -> None:
        namespace.declare_queue("end")
        namespace.declare_queue("start", QueueProperties(forward_to="END"))
        namespace.send("end", [with_id("x")], NOW)
        namespace.send("start", [with_id("a")], NOW)
        assert namespace.counts("start", NOW) == EntityCounts()
        _first, message = namespace.store("end").messages
        assert (message.sequence_number, message.enqueued_sequence_number) == (2, 1)

    def test_a_subscription_can_forward(self, namespace: Namespace) -> None:
        namespace.declare_queue("end")
        namespace.declare_topic("news")
        namespace.declare_subscription("news", "mail", QueueProperties(forward_to="end"))
        namespace.send("news", [with_id("a")], NOW)
        assert drained(namespace.store("end")) == ["a"]

    def test_the_destination_detects_duplicates_among_forwarded_messages(
        self, namespace: Namespace
    ) -> None:
        namespace.declare_queue("end", QueueProperties(duplicate_window=WINDOW))
        namespace.declare_queue("start", QueueProperties(forward_to="end"))
        namespace.send("start", [with_id("a"), with_id("a")], NOW)
        assert drained(namespace.store("end")) == ["a"]

    @pytest.mark.parametrize(("length", "arrives"), [(4, True), (5, False)])
    def test_a_message_is_forwarded_at_most_four_times(
        self, namespace: Namespace, length: int, arrives: bool
    ) -> None:
        for place in range(length):
            next_one = QueueProperties(forward_to=f"q{place + 1}")
            namespace.declare_queue(f"q{place}", next_one)
        namespace.declare_queue(f"q{length}")
        namespace.send("q0", [with_id("a")], NOW)
        assert namespace.counts(f"q{length}", NOW).active == int(arrives)
        stuck = namespace.counts(f"q{length - 1}", NOW).transfer_dead_letter
        assert stuck == int(not arrives)

    def test_circular_forwarding_ends_in_the_transfer_dead_letters(
        self, namespace: Namespace
    ) -> None:
        namespace.declare_queue("a", QueueProperties(forward_to="b"))
        namespace.declare_queue("b", QueueProperties(forward_to="a"))
        namespace.send("a", [with_id("x")], NOW)
        counts = [namespace.counts(name, NOW).transfer_dead_letter for name in "ab"]
        assert sum(counts) == 1

    def test_a_message_that_cannot_be_forwarded_stays_with_the_source(
        self, namespace: Namespace
    ) -> None:
        namespace.declare_queue("lost", QueueProperties(forward_to="nowhere"))
        namespace.declare_queue("sessions", QueueProperties(requires_session=True))
        namespace.declare_queue("none", QueueProperties(forward_to="sessions"))
        for path in ("lost", "none"):
            namespace.send(path, [with_id("a")], NOW)
            assert namespace.counts(path, NOW) == EntityCounts(transfer_dead_letter=1)
            dead = namespace.store(f"{path}/$Transfer/$DeadLetterQueue")
            assert drained(dead) == ["a"]


class TestTopics:
    def test_every_subscription_gets_its_own_copy_of_every_message(
        self, namespace: Namespace
    ) -> None:
        namespace.declare_topic("news")
        for name in ("mail", "log"):
            namespace.declare_subscription("news", name)
        namespace.send("news", [with_id("a"), with_id("b")], NOW)
        assert drained(namespace.store("news/subscriptions/mail")) == ["a", "b"]
        assert namespace.counts("news/subscriptions/log", NOW).active == 2

    def test_a_topic_detects_duplicates_and_holds_scheduled_messages(
        self, namespace: Namespace
    ) -> None:
        namespace.declare_topic("news", TopicProperties(duplicate_window=WINDOW))
        namespace.declare_subscription("news", "mail")
        due = NOW + hours(1)
        for _ in range(2):
            namespace.send("news", [with_id("a", scheduled_for=due)], NOW)
        assert namespace.counts("news", NOW) == EntityCounts(scheduled=1)
        assert namespace.counts("news/subscriptions/mail", NOW) == EntityCounts()
        assert namespace.counts("news/subscriptions/mail", due) == EntityCounts(active=1)

    def test_the_time_to_live_of_a_topic_limits_that_of_its_messages(
        self, namespace: Namespace
    ) -> None:
        namespace.declare_topic("news", TopicProperties(time_to_live=hours(1)))
        namespace.declare_subscription("news", "mail", QueueProperties(time_to_live=hours(9)))
        namespace.send("news", [with_id("a")], NOW)
        assert namespace.counts("news/subscriptions/mail", NOW + hours(1)) == EntityCounts()

    def test_a_message_that_one_subscription_refuses_is_refused_for_all(
        self, namespace: Namespace
    ) -> None:
        namespace.declare_topic("news")
        namespace.declare_subscription("news", "plain")
        sessions = QueueProperties(requires_session=True)
        namespace.declare_subscription("news", "sessions", sessions)
        with pytest.raises(NotAllowed):
            namespace.send("news", [with_id("a", session_id="s"), with_id("b")], NOW)
        assert namespace.counts("news/subscriptions/plain", NOW) == EntityCounts()
