"""Random batches to a queue, in memory and over AMQP, have the same result and messages."""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from itertools import count
from typing import Any, cast

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from local.amqp_broker import AmqpStandIn, faults
from local.amqp_broker.model.entities import Queue
from local.amqp_broker.model.properties import QueueProperties
from local.twins.messaging import Fault as LinkFault
from local.twins.messaging import MemoryLink, MemoryQueue
from shared.messaging.batch_sender import BatchLink, BatchSender
from shared.messaging.link import ServiceBusLink
from shared.messaging.model import SendingStopped, UnsendableMessage
from shared.messaging.send_state import RetryBudget
from shared.settings.connections import ServiceBusConnection
from shared.values.messages import LinkFailed, Message, Order, Result
from tests.storage.faulty_network import Network
from tests.storage.stateful import HOSTILE, SideBySide, names, run_machine, texts

QUEUE = "jobs"
QUICK = RetryBudget(failures_max=3, pause_seconds=0, busy_seconds=0)
HUGE = 300_000
FAULTS = {
    LinkFault.BUSY: faults.throttle(QUEUE),
    LinkFault.REFUSED: faults.TransferFault(
        faults.FaultKind.REFUSE, "amqp:not-allowed", entity=QUEUE
    ),
    LinkFault.DROP_BEFORE: faults.drop_before_accept(QUEUE),
    LinkFault.DROP_AFTER: faults.drop_after_accept(QUEUE),
}
NO_FAULT: tuple[LinkFault, ...] = ()
ORDERED = st.sampled_from(
    (
        *[NO_FAULT] * 6,
        (LinkFault.BUSY,),
        (LinkFault.DROP_BEFORE,),
        (LinkFault.DROP_AFTER,),
        (LinkFault.REFUSED,),
        (LinkFault.REFUSED, LinkFault.REFUSED),
        (LinkFault.BUSY, LinkFault.DROP_AFTER),
        (LinkFault.BUSY,) * QUICK.failures_max,
    )
)
bodies = st.one_of(st.sampled_from((b"", 1000, 100_000, 100_000, None, "ü")), texts)
"""A number stands for a body of that many bytes."""
drafts = st.builds(
    Message,
    body=bodies,
    message_id=st.sampled_from(("1", "2", "3", "ü|#?", "x" * 90, " ")),
    session_id=st.none() | st.sampled_from(("sales", HOSTILE[1])),
    partition_key=st.none(),
    correlation_id=st.none() | texts,
    content_type=st.sampled_from((*[None] * 5, "text/plain", "text/ü")),
    subject=st.none() | texts,
    to=st.none() | texts,
    reply_to=st.none() | texts,
    reply_to_session_id=st.none() | names,
    scheduled_at=st.none(),
    time_to_live=st.sampled_from((None, timedelta(hours=200))),
    application_properties=st.none()
    | st.dictionaries(texts.filter(bool), st.booleans() | texts | st.integers(-(2**63), 2**63 - 1)),
)
HOURS = st.sampled_from((None, None, -1, 1, 20))
"""Hours from now until a message is scheduled; None for a message that is not scheduled."""


def shown(result: Result) -> Any:
    """The result without the reasons of refusals."""
    refused = [(refusal.position, refusal.message_id) for refusal in result.refused]
    return replace(result, refused=()), refused


class SendingMachine(SideBySide):
    errors = (UnsendableMessage, SendingStopped, LinkFailed)

    def __init__(
        self, runner: asyncio.Runner, network: Network, bus: AmqpStandIn, link: BatchLink
    ) -> None:
        super().__init__(runner, network)
        self.bus, self.prefix = bus, uuid.uuid4().hex[:8]
        self.memory_queue, self.ordered = MemoryQueue(), deque[LinkFault]()
        memory_link = MemoryLink(self.memory_queue, self.faults(), busy_seconds=0)
        self.memory, self.real = sender(memory_link), sender(link)

    def faults(self) -> Iterator[LinkFault]:
        while True:
            yield self.ordered.popleft() if self.ordered else LinkFault.NONE

    @rule(
        generated=st.lists(st.tuples(drafts, HOURS), min_size=1, max_size=6),
        order=st.sampled_from(Order),
        ordered=ORDERED,
    )
    def send(
        self,
        generated: list[tuple[Message, int | None]],
        order: Order,
        ordered: tuple[LinkFault, ...],
    ) -> None:
        messages = [self.of_this_example(draft, hours) for draft, hours in generated]
        self.ordered.extend(ordered)
        for fault in ordered:
            self.bus.faults.arm(FAULTS[fault])
        self.both(
            lambda: self.memory.send(messages, order),
            lambda: self.real.send(messages, order),
            shown=shown,
        )
        self.ordered.clear()
        self.bus.faults.disarm()

    @rule(draft=drafts, huge=st.booleans())
    def send_what_cannot_be_sent(self, draft: Message, huge: bool) -> None:
        bad = (
            draft._replace(body=cast("bytes", HUGE))
            if huge
            else draft._replace(subject=cast("str", 7))
        )
        messages = [self.of_this_example(each, None) for each in (draft, bad)]
        self.both(lambda: self.memory.send(messages), lambda: self.real.send(messages), shown=shown)

    def of_this_example(self, draft: Message, hours: int | None) -> Message:
        due = None if hours is None else self.network.now + timedelta(hours=hours)
        body = bytes(draft.body) if isinstance(draft.body, int) else draft.body
        name = f"{self.prefix}{draft.message_id}"
        return draft._replace(body=body, message_id=name, scheduled_at=due)

    @rule(minutes=st.integers(1, 90))
    def time_passes(self, minutes: int) -> None:
        self.later(60 * minutes)

    @invariant()
    def the_same_messages_are_there(self) -> None:
        arrived = self.arrived()
        expected = [
            (m.message_id, m.session_id, m.time_to_live, m.scheduled_at)
            for m in self.memory_queue.messages
        ]
        assert sorted(arrived, key=repr) == sorted(expected, key=repr)
        at_once = [each for each in expected if each[3] is None]
        assert [each for each in arrived if each[3] is None] == at_once

    def arrived(self) -> list[Any]:
        queue = cast("Queue", self.bus.namespace.entity(QUEUE))
        self.bus.broker.advance()
        contents = [each.content for each in queue.stores[0].messages]
        contents += [each.content for each in queue.intake.scheduled]
        return [
            (c.message_id, c.session_id, c.time_to_live, c.scheduled_for)
            for c in contents
            if c.message_id and c.message_id.startswith(self.prefix)
        ]


def sender(link: BatchLink) -> BatchSender:
    ids = count()
    return BatchSender(link, asyncio.sleep, lambda: str(next(ids)), QUICK)


# The client leaves the sockets of broken connections to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_batches_over_amqp_arrive_like_those_in_memory() -> None:
    network = Network()
    bus = AmqpStandIn(clock=lambda: network.now)
    properties = QueueProperties(duplicate_window=timedelta(days=7))
    bus.namespace.declare_queue(QUEUE, properties)
    with asyncio.Runner() as runner:
        runner.run(bus.__aenter__())
        connection = ServiceBusConnection("Bus", bus.connection_string)
        link = ServiceBusLink(connection, QUEUE, lambda: network.now)
        try:
            run_machine(lambda: SendingMachine(runner, network, bus, link), examples=3, steps=25)
        finally:
            runner.run(link.close())
            runner.run(bus.__aexit__())
