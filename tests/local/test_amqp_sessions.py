"""Sessions over AMQP, with the real clients."""

import asyncio
from datetime import timedelta

import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION
from azure.servicebus.exceptions import (
    OperationTimeoutError,
    ServiceBusError,
    SessionCannotBeLockedError,
    SessionLockLostError,
)

from tests.local.amqp_rig import (
    SIDE_BY_SIDE,
    WAIT_SECONDS,
    Rig,
    bodies,
    first_message,
    message,
    opened,
    received,
    scenario,
    side_by_side,
)
from tests.local.polling import until

pytestmark = [*SIDE_BY_SIDE, pytest.mark.usefixtures(side_by_side.__name__)]

LOCK = timedelta(seconds=30)


async def session_queue(rig: Rig, *texts: str) -> str:
    """Create a session queue with messages such as `a1`, in the session `a`."""
    queue = await rig.queue(requires_session=True, lock_duration=LOCK)
    if texts:
        sender = rig.client.get_queue_sender(queue)
        await rig.open(sender)
        await sender.send_messages([message(text, session_id=text[0]) for text in texts])
    return queue


@scenario
async def test_a_session_delivers_only_its_own_messages_in_order(rig: Rig) -> None:
    queue = await session_queue(rig, "a1", "b1", "a2", "b2")
    b = rig.client.get_queue_receiver(queue, session_id="b")
    following = rig.client.get_queue_receiver(queue, session_id=NEXT_AVAILABLE_SESSION)
    await rig.open(b)
    await rig.open(following)
    assert await bodies(b, 2) == ["b1", "b2"]
    assert following.session.session_id == "a"
    assert await bodies(following, 2) == ["a1", "a2"]


@scenario
async def test_a_session_has_one_receiver_and_is_released_when_it_closes(rig: Rig) -> None:
    queue = await session_queue(rig, "a1")
    async with opened(first := rig.client.get_queue_receiver(queue, session_id="a")):
        await received(first, 1)
        with pytest.raises(SessionCannotBeLockedError):
            await first_message(rig, rig.client.get_queue_receiver(queue, session_id="a"))
    await rig.open(second := rig.client.get_queue_receiver(queue, session_id="a"))
    (again,) = await received(second, 1)
    assert again.delivery_count == 0


@scenario
async def test_a_session_lock_expires_unless_it_is_renewed(rig: Rig) -> None:
    queue = await session_queue(rig, "a1", "a2")
    await rig.open(late := rig.client.get_queue_receiver(queue, session_id="a"))
    (held,) = await received(late, 1)
    rig.advance(seconds=20)
    until = await late.session.renew_lock()
    assert abs(until - (rig.clock() + LOCK)) < timedelta(milliseconds=2)
    rig.advance(seconds=20)
    await late.complete_message(held)
    (held,) = await received(late, 1)
    rig.advance(seconds=31)
    with pytest.raises(SessionLockLostError):
        await late.session.renew_lock()
    with pytest.raises(ServiceBusError):
        await late.complete_message(held)
    await rig.open(next_receiver := rig.client.get_queue_receiver(queue, session_id="a"))
    (again,) = await received(next_receiver, 1)
    assert (str(again), again.delivery_count) == ("a2", 1)


@scenario
async def test_a_receiver_of_any_session_waits_until_one_has_messages(rig: Rig) -> None:
    queue = await session_queue(rig)
    sender = rig.client.get_queue_sender(queue)
    await rig.open(sender)
    waiting = rig.client.get_queue_receiver(
        queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=WAIT_SECONDS
    )
    opening = asyncio.create_task(rig.open(waiting))
    await until(
        lambda: rig.bus.stand_in is None or rig.bus.stand_in.waiting_count == 1, WAIT_SECONDS
    )
    await sender.send_messages(message("z1", session_id="z"))
    await opening
    assert waiting.session.session_id == "z"
    assert await bodies(waiting, 1) == ["z1"]


@scenario
async def test_waiting_for_a_session_times_out(rig: Rig) -> None:
    queue = await session_queue(rig)
    waiting = rig.client.get_queue_receiver(
        queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=0.5
    )
    with pytest.raises(OperationTimeoutError):
        await first_message(rig, waiting)


@scenario
async def test_session_receivers_and_session_queues_require_each_other(rig: Rig) -> None:
    with_sessions, without = await session_queue(rig), await rig.queue()
    sender = rig.client.get_queue_sender(with_sessions)
    with pytest.raises(ServiceBusError):
        await first_message(rig, rig.client.get_queue_receiver(without, session_id="a"))
    with pytest.raises(ServiceBusError):
        await first_message(rig, rig.client.get_queue_receiver(with_sessions))
    await rig.open(sender)
    with pytest.raises(ServiceBusError):
        await sender.send_messages(message("no session"))
