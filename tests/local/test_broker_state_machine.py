"""In any sequence of calls, the broker loses, duplicates and reorders no message."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from uuid import UUID

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule

from local.amqp_broker.model.errors import LockLost
from local.amqp_broker.model.message import Content, Message
from local.amqp_broker.model.namespace import Namespace
from local.amqp_broker.model.properties import QueueProperties

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
LOCK = timedelta(seconds=10)
DELIVERIES_MAX = 3


@dataclass
class Held:
    """A message that a receiver believes it has locked."""

    name: str
    token: UUID
    until: datetime


@dataclass
class Expected:
    """A simple model of one message: where it must be."""

    name: str
    number: int
    place: str = "ready"  # ready, locked, dead, done
    failures: int = 0
    held: Held | None = None

    def fail(self) -> None:
        self.failures += 1
        self.held = None
        if self.failures >= DELIVERIES_MAX:
            self.place = "dead"
        else:
            self.place = "ready"


class QueueMachine(RuleBasedStateMachine):
    """One queue with several receivers and a clock."""

    holds = Bundle("holds")

    def __init__(self) -> None:
        super().__init__()
        self.now = NOW
        self.names = count()
        self.namespace = Namespace()
        properties = QueueProperties(lock_duration=LOCK, max_delivery_count=DELIVERIES_MAX)
        self.namespace.declare_queue("jobs", properties)
        self.store = self.namespace.store("jobs")
        self.expected: dict[str, Expected] = {}

    @rule(size=st.integers(1, 3))
    def send(self, size: int) -> None:
        names = [str(next(self.names)) for _ in range(size)]
        contents = [Content(name.encode()) for name in names]
        numbers = self.namespace.send("jobs", contents, self.now)
        for name, number in zip(names, numbers, strict=True):
            self.expected[name] = Expected(name, number)

    @rule(target=holds)
    def receive(self) -> object:
        message = self.store.receive(self.now)
        ready = self.at("ready")
        if message is None:
            assert not ready
            return multiple()
        first = min(ready, key=lambda each: each.number)
        assert message.content.payload.decode() == first.name
        assert message.delivery_count == first.failures
        return self.hold(message)

    @rule(held=holds, how=st.sampled_from(["complete", "abandon", "release", "dead_letter"]))
    def settle(self, held: Held, how: str) -> None:
        expected = self.expected[held.name]
        actions = {
            "complete": self.store.complete,
            "abandon": self.store.abandon,
            "release": self.store.release,
            "dead_letter": self.dead_letter,
        }
        if expected.held is not held:
            with pytest.raises(LockLost):
                actions[how](held.token, self.now)
            return
        actions[how](held.token, self.now)
        self.follow(expected, how)

    @rule(held=holds)
    def renew(self, held: Held) -> None:
        if self.expected[held.name].held is not held:
            with pytest.raises(LockLost):
                self.store.renew(held.token, self.now)
            return
        held.until = self.store.renew(held.token, self.now)

    @rule(seconds=st.integers(0, 15))
    def pass_time(self, seconds: int) -> None:
        self.now += timedelta(seconds=seconds)
        for expected in self.expected.values():
            if expected.held is not None and expected.held.until <= self.now:
                expected.fail()

    @invariant()
    def every_message_is_in_exactly_one_place(self) -> None:
        counts = self.namespace.counts("jobs", self.now)
        alive = self.at("ready", "locked")
        assert (counts.active, counts.dead_letter) == (len(alive), len(self.at("dead")))
        assert self.store.ready_count == len(self.at("ready"))
        assert self.store.locked_count == len(self.at("locked"))
        assert names(self.store.messages) == [each.name for each in alive]
        dead = self.namespace.store("jobs/$deadletterqueue")
        assert set(names(dead.messages)) == {each.name for each in self.at("dead")}

    def at(self, *places: str) -> list[Expected]:
        return [each for each in self.expected.values() if each.place in places]

    def dead_letter(self, token: UUID, now: datetime) -> None:
        self.store.dead_letter(token, now, "reason", "description")

    def hold(self, message: Message) -> Held:
        assert message.lock is not None
        expected = self.expected[message.content.payload.decode()]
        expected.place = "locked"
        expected.held = Held(expected.name, message.lock.token, message.lock.until)
        return expected.held

    def follow(self, expected: Expected, how: str) -> None:
        if how == "abandon":
            expected.fail()
            return
        places = {"complete": "done", "dead_letter": "dead", "release": "ready"}
        expected.place, expected.held = places[how], None


def names(messages: Iterable[Message]) -> list[str]:
    return [message.content.payload.decode() for message in messages]


def test_an_abandoned_message_keeps_its_place_in_the_queue() -> None:
    machine = QueueMachine()
    machine.send(3)
    first, _second = machine.receive(), machine.receive()
    assert isinstance(first, Held)
    machine.settle(first, "abandon")
    again = machine.receive()
    assert isinstance(again, Held)
    assert (first.name, again.name) == ("0", "0")


QueueMachine.TestCase.settings = settings(max_examples=30, stateful_step_count=40)
TestQueueMachine = QueueMachine.TestCase
