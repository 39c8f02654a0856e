"""Queues over AMQP, asked by the real azure-servicebus clients, sync and aio."""

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
    ServiceBusError,
)

from tests.local.amqp_rig import (
    SIDE_BY_SIDE,
    Rig,
    bodies,
    both,
    first_message,
    first_send,
    message,
    nothing_comes,
    opened,
    received,
    side_by_side,
)

pytestmark = [*SIDE_BY_SIDE, pytest.mark.usefixtures(side_by_side.__name__)]

LOCK = timedelta(seconds=30)
Ask = Callable[[SimpleNamespace], Awaitable[Any]]


@both
async def test_what_was_sent_is_received_in_order_and_gone_once_completed(rig: Rig) -> None:
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


@both
async def test_a_batch_is_several_messages_and_a_body_that_looks_like_one_is_not(
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


@both
async def test_a_message_that_needs_many_frames_arrives_whole(rig: Rig) -> None:
    queue = await rig.queue()
    text = "0123456789" * 25_000
    sender, receiver = await rig.links(queue)
    await sender.send_messages(message(text))
    assert await bodies(receiver, 1) == [text]


@both
async def test_what_is_too_large_for_the_link_is_refused_and_told(rig: Rig) -> None:
    queue = await rig.queue()
    sender, receiver = await rig.links(queue)
    with pytest.raises(MessageSizeExceededError):
        await sender.send_messages(message("x" * 256 * 1024))
    await sender.send_messages(message("still here"))
    assert await bodies(receiver, 1) == ["still here"]


@both
async def test_an_abandoned_message_comes_again_until_it_is_dead(rig: Rig) -> None:
    queue = await rig.queue(max_delivery_count=3)
    dead = rig.client.get_queue_receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    sender, receiver = await rig.links(queue)
    await rig.open(dead)
    await sender.send_messages(message("poison"))
    for failures in range(3):
        (each,) = await received(receiver, 1)
        assert each.delivery_count == failures
        await receiver.abandon_message(each)
    (buried,) = await received(dead, 1)
    assert (str(buried), buried.dead_letter_reason) == ("poison", "MaxDeliveryCountExceeded")
    assert buried.dead_letter_source == queue
    await dead.complete_message(buried)
    await nothing_comes(receiver)


@both
async def test_dead_lettering_by_the_receiver_keeps_reason_and_properties(rig: Rig) -> None:
    queue = await rig.queue()
    dead = rig.client.get_queue_receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    sender, receiver = await rig.links(queue)
    await rig.open(dead)
    await sender.send_messages(message("bad", application_properties={"k": "v"}))
    (each,) = await received(receiver, 1)
    await receiver.dead_letter_message(each, reason="why", error_description="because")
    (buried,) = await received(dead, 1)
    assert buried.dead_letter_reason == "why"
    assert buried.dead_letter_error_description == "because"
    assert buried.application_properties[b"k"] == b"v"
    await dead.complete_message(buried)


@both
async def test_a_lock_that_runs_out_gives_the_message_to_another(rig: Rig) -> None:
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


@both
async def test_a_renewed_lock_holds_longer(rig: Rig) -> None:
    queue = await rig.queue(lock_duration=LOCK)
    sender, receiver = await rig.links(queue)
    await sender.send_messages(message("slow"))
    (slow,) = await received(receiver, 1)
    token, before = slow.lock_token, slow.locked_until_utc
    rig.advance(seconds=20)
    until = await receiver.renew_message_lock(slow)
    assert until == before + timedelta(seconds=20)
    rig.advance(seconds=20)
    await receiver.complete_message(slow)
    assert rig.counts(queue).active == 0
    with pytest.raises(MessageLockLostError):
        await receiver._renew_locks(token)


@both
async def test_what_expires_is_gone_or_among_the_dead_letters(rig: Rig) -> None:
    queue = await rig.queue(dead_letters_expired=True)
    sender, receiver = await rig.links(queue)
    await sender.send_messages(message("old", time_to_live=timedelta(minutes=1)))
    await sender.send_messages(message("new"))
    rig.advance(minutes=1)
    assert await bodies(receiver, 1) == ["new"]
    assert rig.counts(queue).dead_letter == 1


@both
async def test_an_entity_that_is_not_there_is_not_found(rig: Rig) -> None:
    with pytest.raises(MessagingEntityNotFoundError):
        await first_send(rig, rig.client.get_queue_sender("none"))
    with pytest.raises(MessagingEntityNotFoundError):
        await first_message(rig, rig.client.get_queue_receiver("none"))


@both
async def test_what_is_released_on_closing_costs_no_delivery(rig: Rig) -> None:
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


@both
async def test_messages_received_stay_locked_when_the_link_closes(rig: Rig) -> None:
    queue = await rig.queue(lock_duration=LOCK)
    sender, receiver = rig.client.get_queue_sender(queue), rig.client.get_queue_receiver(queue)
    async with opened(sender, receiver):
        await sender.send_messages(message("a"))
        await received(receiver, 1)
    again = rig.client.get_queue_receiver(queue)
    await rig.open(again)
    await nothing_comes(again)
    rig.advance(seconds=31)
    assert await bodies(again, 1) == ["a"]


NOT_SUPPORTED: dict[str, Ask] = {
    "receive and delete": lambda links: first_message(links.rig, links.deleting),
    "deferring a message": lambda links: links.receiver.defer_message(links.held),
    "receive-by-sequence-number": lambda links: links.receiver.receive_deferred_messages([99]),
    "peek-message": lambda links: links.receiver.peek_messages(1),
    "cancel-scheduled-message": lambda links: links.sender.cancel_scheduled_messages(99),
    "get-session-state": lambda links: links.session.get_state(),
    "set-session-state": lambda links: links.session.set_state(b"half way"),
}


@both
async def test_what_azure_has_and_the_stand_in_has_not_is_refused_by_its_name(rig: Rig) -> None:
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
