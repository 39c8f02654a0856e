"""Topics, forwarding, scheduling and duplicate detection over AMQP, with the real clients."""

from datetime import timedelta

import pytest
from azure.servicebus import ServiceBusSubQueue
from azure.servicebus.exceptions import MessagingEntityNotFoundError

from local.azure_apis.entities import EntityCounts
from tests.local.amqp_rig import (
    SIDE_BY_SIDE,
    Rig,
    bodies,
    first_message,
    message,
    nothing_comes,
    received,
    scenario,
    side_by_side,
)

pytestmark = [*SIDE_BY_SIDE, pytest.mark.usefixtures(side_by_side.__name__)]

WINDOW = timedelta(hours=48)


@scenario
async def test_every_subscription_gets_every_message(rig: Rig) -> None:
    topic = await rig.topic("mail", "log")
    sender = rig.client.get_topic_sender(topic)
    mail = rig.client.get_subscription_receiver(topic, "mail")
    log = rig.client.get_subscription_receiver(topic, "log")
    await rig.open(sender, mail, log)
    await sender.send_messages([message("a"), message("b")])
    assert await bodies(mail, 2) == ["a", "b"]
    assert await bodies(log, 2) == ["a", "b"]


@scenario
async def test_each_subscription_has_its_own_dead_letters(rig: Rig) -> None:
    topic = await rig.topic("mail", "log")
    sender = rig.client.get_topic_sender(topic)
    mail = rig.client.get_subscription_receiver(topic, "mail")
    dead = rig.client.get_subscription_receiver(
        topic, "mail", sub_queue=ServiceBusSubQueue.DEAD_LETTER
    )
    await rig.open(sender, mail, dead)
    await sender.send_messages(message("a"))
    (letter,) = await received(mail, 1)
    await mail.dead_letter_message(letter, reason="why")
    assert await bodies(dead, 1) == ["a"]


@scenario
async def test_a_missing_subscription_is_reported_as_not_found(rig: Rig) -> None:
    topic = await rig.topic("mail")
    with pytest.raises(MessagingEntityNotFoundError):
        await first_message(rig, rig.client.get_subscription_receiver(topic, "none"))


@scenario
async def test_forwarded_messages_keep_their_enqueued_sequence_number(rig: Rig) -> None:
    end = await rig.queue()
    start = await rig.queue(forward_to=end)
    sender = rig.client.get_queue_sender(start)
    end_sender, receiver = await rig.links(end)
    await rig.open(sender)
    await end_sender.send_messages(message("first"))
    await sender.send_messages(message("forwarded", message_id="m"))
    first, forwarded = await received(receiver, 2)
    assert (str(first), str(forwarded)) == ("first", "forwarded")
    assert (forwarded.sequence_number, forwarded.enqueued_sequence_number) == (2, 1)
    assert forwarded.message_id == "m"


@scenario
async def test_a_scheduled_message_is_delivered_when_it_is_due(rig: Rig) -> None:
    queue = await rig.queue()
    sender, receiver = await rig.links(queue)
    due = rig.clock() + timedelta(hours=24)
    (number,) = await sender.schedule_messages(message("by call"), due)
    await sender.send_messages(message("by property", scheduled_enqueue_time_utc=due))
    await nothing_comes(receiver)
    assert rig.counts(queue) == EntityCounts(scheduled=2)
    rig.advance(hours=24)
    first, second = await received(receiver, 2)
    assert (str(first), str(second)) == ("by call", "by property")
    assert first.enqueued_time_utc - due < timedelta(milliseconds=1)
    assert first.sequence_number > number


@scenario
async def test_a_message_id_is_accepted_once_within_a_window_of_two_days(rig: Rig) -> None:
    queue = await rig.queue(duplicate_window=WINDOW)
    sender, receiver = await rig.links(queue)
    for hours in (0, 24, 23.9):  # 47.9 h after the first
        rig.advance(hours=hours)
        await sender.send_messages(message("once", message_id="same"))
    await sender.send_messages(message("other", message_id="other"))
    rig.advance(hours=0.1)
    await sender.send_messages(message("again", message_id="same"))
    assert await bodies(receiver, 3) == ["once", "other", "again"]
