"""Queues over AMQP with the real azure-servicebus client."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from azure.servicebus import ServiceBusReceiveMode, ServiceBusSubQueue
from azure.servicebus.exceptions import (
    MessageLockLostError,
    MessageSizeExceededError,
    MessagingEntityNotFoundError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusServerBusyError,
)

from local.amqp_broker import faults
from tests.local.amqp_rig import (
    SIDE_BY_SIDE,
    Rig,
    bodies,
    first_message,
    first_send,
    message,
    nothing_comes,
    opened,
    received,
    scenario,
    side_by_side,
)

pytestmark = [*SIDE_BY_SIDE, pytest.mark.usefixtures(side_by_side.__name__)]

LOCK = timedelta(seconds=30)
QUICK_RETRIES = {"retry_total": 3, "retry_backoff_factor": 0.01}
Ask = Callable[[SimpleNamespace], Awaitable[Any]]


@scenario
async def test_messages_are_received_in_order_and_removed_when_completed(rig: Rig) -> None:
    queue = await rig.queue()
    sender, receiver = await rig.links(queue)
    await sender.send_messages([message("one"), message("two")])
    properties = {"text": "ä", "number": 1, "yes": True}
    await sender.send_messages(
        message("three", message_id="m3", application_properties=properties, subject="s")
    )
    messages = await received(receiver, 3)
    assert [str(each) for each in messages] == ["one", "two", "three"]
    assert [each.sequence_number for each in messages] == [1, 2, 3]
    last = messages[2]
    assert (last.message_id, last.subject, last.delivery_count) == ("m3", "s", 0)
    assert last.application_properties == {b"text": "ä".encode(), b"number": 1, b"yes": True}
    for each in messages:
        await receiver.complete_message(each)
    await nothing_comes(receiver)


@scenario
async def test_a_batch_is_unpacked_but_a_body_that_resembles_one_is_not(
    rig: Rig,
) -> None:
    queue = await rig.queue()
    sender, receiver = await rig.links(queue)
    batch = await sender.create_message_batch()
    assert batch.max_size_in_bytes == 256 * 1024
    for number in range(100):
        batch.add_message(message(f"{number}", message_id=f"m{number}"))
    await sender.send_messages(batch)
    encoded_message = b"\x00\x53\x75\xa0\x02hi"
    await sender.send_messages(message(encoded_message))
    messages = await received(receiver, 101)
    assert [str(each) for each in messages[:100]] == [str(number) for number in range(100)]
    assert b"".join(messages[100].body) == encoded_message


@scenario
async def test_a_message_above_the_size_limit_is_refused_with_an_error(rig: Rig) -> None:
    queue = await rig.queue()
    sender, receiver = await rig.links(queue)
    with pytest.raises(MessageSizeExceededError):
        await sender.send_messages(message("x" * 256 * 1024))
    await sender.send_messages(message("still here"))
    assert await bodies(receiver, 1) == ["still here"]


@scenario
async def test_an_abandoned_message_is_redelivered_and_then_dead_lettered(rig: Rig) -> None:
    queue = await rig.queue(max_delivery_count=3)
    dead = rig.client.get_queue_receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    sender, receiver = await rig.links(queue)
    await rig.open(dead)
    await sender.send_messages([message("poison"), message("after it")])
    for failures in range(3):
        (each,) = await received(receiver, 1)
        assert (str(each), each.delivery_count) == ("poison", failures), "it keeps its place"
        await receiver.abandon_message(each)
    (dead_letter,) = await received(dead, 1)
    assert (str(dead_letter), dead_letter.dead_letter_reason) == (
        "poison",
        "MaxDeliveryCountExceeded",
    )
    assert dead_letter.dead_letter_source == queue
    await dead.complete_message(dead_letter)
    assert await bodies(receiver, 1) == ["after it"]


@scenario
async def test_a_dead_lettered_message_keeps_the_reason_and_its_properties(rig: Rig) -> None:
    queue = await rig.queue()
    dead = rig.client.get_queue_receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    sender, receiver = await rig.links(queue)
    await rig.open(dead)
    await sender.send_messages(message("bad", application_properties={"k": "v"}))
    (each,) = await received(receiver, 1)
    await receiver.dead_letter_message(each, reason="why", error_description="because")
    (dead_letter,) = await received(dead, 1)
    assert dead_letter.dead_letter_reason == "why"
    assert dead_letter.dead_letter_error_description == "because"
    assert dead_letter.application_properties[b"k"] == b"v"
    await dead.complete_message(dead_letter)


@scenario
async def test_a_message_is_redelivered_when_its_lock_expires(rig: Rig) -> None:
    queue = await rig.queue(lock_duration=LOCK)
    sender, receiver = await rig.links(queue)
    await sender.send_messages(message("slow"))
    (late,) = await received(receiver, 1)
    rig.advance(seconds=31)
    (again,) = await received(receiver, 1)
    assert again.delivery_count == 1
    with pytest.raises(MessageLockLostError):
        await receiver.complete_message(late)
    await receiver.complete_message(again)
    assert rig.counts(queue).active == 0


@scenario
async def test_a_missing_entity_is_reported_as_not_found(rig: Rig) -> None:
    with pytest.raises(MessagingEntityNotFoundError):
        await first_send(rig, rig.client.get_queue_sender("none"))
    with pytest.raises(MessagingEntityNotFoundError):
        await first_message(rig, rig.client.get_queue_receiver("none"))


@scenario
async def test_closing_a_receiver_does_not_count_as_a_failed_delivery_of_prefetched_messages(
    rig: Rig,
) -> None:
    queue = await rig.queue()
    sender = rig.client.get_queue_sender(queue)
    receiver = rig.client.get_queue_receiver(queue, prefetch_count=5)
    async with opened(sender, receiver):
        await sender.send_messages([message("a"), message("b")])
        await received(receiver, 1)
    again = rig.client.get_queue_receiver(queue)
    await rig.open(again)
    (second,) = await received(again, 1)
    assert (str(second), second.delivery_count) == ("b", 0)


@scenario
async def test_duplicate_detection_drops_a_resent_batch(rig: Rig) -> None:
    plain = await rig.queue()
    detecting = await rig.queue(duplicate_window=timedelta(hours=1))
    client = await rig.another_client(**QUICK_RETRIES)
    for queue, expected in ((plain, 4), (detecting, 2)):
        sender = client.get_queue_sender(queue)
        await rig.open(sender)
        rig.inside().faults.arm(faults.drop_after_accept(queue))
        await sender.send_messages([message(each, message_id=each) for each in "ab"])
        assert rig.counts(queue).active == expected


@scenario
async def test_a_throttled_sender_receives_the_server_busy_error(rig: Rig) -> None:
    queue = await rig.queue()
    sender, receiver = await rig.links(queue)
    rig.inside().faults.arm(faults.throttle(), times=2)
    for _ in range(2):
        with pytest.raises(ServiceBusServerBusyError):
            await sender.send_messages(message("refused"))
    await sender.send_messages(message("taken"))
    assert await bodies(receiver, 1) == ["taken"]


@scenario
async def test_a_detached_link_reports_an_error_and_can_be_opened_again(rig: Rig) -> None:
    queue = await rig.queue()
    sender, receiver = await rig.links(queue)
    rig.inside().faults.arm(faults.detach())
    with pytest.raises(ServiceBusConnectionError):
        await sender.send_messages(message("lost"))
    await sender.send_messages(message("after"))
    assert await bodies(receiver, 1) == ["after"]


NOT_SUPPORTED: dict[str, Ask] = {
    "receive and delete": lambda links: first_message(links.rig, links.deleting),
    "deferring a message": lambda links: links.receiver.defer_message(links.held),
    "receive-by-sequence-number": lambda links: links.receiver.receive_deferred_messages([99]),
    "peek-message": lambda links: links.receiver.peek_messages(1),
    "cancel-scheduled-message": lambda links: links.sender.cancel_scheduled_messages(99),
    "get-session-state": lambda links: links.session.get_state(),
    "set-session-state": lambda links: links.session.set_state(b"half way"),
}


@scenario
async def test_unsupported_operations_are_refused_by_name(rig: Rig) -> None:
    rig.inside()
    queue, with_sessions = await rig.queue(), await rig.queue(requires_session=True)
    sender, receiver = await rig.links(queue)
    await rig.open(session := rig.client.get_queue_receiver(with_sessions, session_id="a"))
    deleting = rig.client.get_queue_receiver(
        queue, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE
    )
    await sender.send_messages([message("held"), message("a")])
    (held,) = await received(receiver, 1)
    links = SimpleNamespace(
        rig=rig,
        sender=sender,
        receiver=receiver,
        session=session.session,
        deleting=deleting,
        held=held,
    )
    for name, ask in NOT_SUPPORTED.items():
        with pytest.raises(ServiceBusError, match=f"does not support .*{name}"):
            await ask(links)
    assert await bodies(receiver, 1) == ["a"]
