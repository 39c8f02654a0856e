"""Faults of the stand-in, as the real clients see them."""

import time
from datetime import timedelta

import pytest
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusServerBusyError,
)

from local.amqp_broker import faults
from local.faults import FaultSwitches
from tests.local.amqp_rig import SIDE_BY_SIDE, Rig, bodies, both, message, side_by_side

pytestmark = [*SIDE_BY_SIDE, pytest.mark.usefixtures(side_by_side.__name__)]

QUICK_RETRIES = {"retry_total": 3, "retry_backoff_factor": 0.01}


@both
async def test_a_connection_dropped_before_accepting_loses_the_message(rig: Rig) -> None:
    queue = await rig.queue()
    sender, _ = await rig.links(queue)
    rig.inside().faults.arm(faults.drop_before_accept())
    with pytest.raises(ServiceBusError):
        await sender.send_messages(message("lost"))
    assert rig.counts(queue).active == 0


@both
async def test_a_connection_dropped_after_accepting_keeps_the_message(rig: Rig) -> None:
    queue = await rig.queue()
    sender, receiver = await rig.links(queue)
    rig.inside().faults.arm(faults.drop_after_accept())
    with pytest.raises(ServiceBusError):
        await sender.send_messages(message("there"))
    assert await bodies(receiver, 1) == ["there"]


@both
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


@both
async def test_a_client_with_retries_survives_a_dropped_connection(rig: Rig) -> None:
    queue = await rig.queue()
    client = await rig.another_client(**QUICK_RETRIES)
    sender, receiver = client.get_queue_sender(queue), client.get_queue_receiver(queue)
    await rig.open(sender, receiver)
    rig.inside().faults.arm(faults.drop_before_accept(), times=2)
    await sender.send_messages(message("at last"))
    rig.inside().drop_connections()
    assert await bodies(receiver, 1) == ["at last"]


@both
async def test_a_throttled_sender_receives_the_server_busy_error(rig: Rig) -> None:
    queue = await rig.queue()
    sender, receiver = await rig.links(queue)
    rig.inside().faults.arm(faults.throttle(), times=2)
    for _ in range(2):
        with pytest.raises(ServiceBusServerBusyError):
            await sender.send_messages(message("refused"))
    await sender.send_messages(message("taken"))
    assert await bodies(receiver, 1) == ["taken"]


@both
async def test_a_size_fault_refuses_only_the_transfer_that_it_applies_to(rig: Rig) -> None:
    queue = await rig.queue()
    sender, receiver = await rig.links(queue)
    rig.inside().faults.arm(faults.size_exceeded(), skip=1)
    await sender.send_messages(message("first"))
    with pytest.raises(MessageSizeExceededError):
        await sender.send_messages(message("second"))
    await sender.send_messages(message("third"))
    assert await bodies(receiver, 2) == ["first", "third"]


@both
async def test_a_detached_link_reports_an_error_and_can_be_opened_again(rig: Rig) -> None:
    queue = await rig.queue()
    sender, receiver = await rig.links(queue)
    rig.inside().faults.arm(faults.detach())
    with pytest.raises(ServiceBusConnectionError):
        await sender.send_messages(message("lost"))
    await sender.send_messages(message("after"))
    assert await bodies(receiver, 1) == ["after"]


@both
async def test_a_delay_fault_delays_the_answer_but_stores_the_message(rig: Rig) -> None:
    queue = await rig.queue()
    sender, receiver = await rig.links(queue)
    rig.inside().faults.arm(faults.delay(0.3))
    started = time.monotonic()
    await sender.send_messages(message("slow"))
    assert time.monotonic() - started >= 0.3
    assert await bodies(receiver, 1) == ["slow"]


@both
async def test_a_fault_for_one_entity_does_not_affect_others(rig: Rig) -> None:
    faulty, other = await rig.queue(), await rig.queue()
    sender, receiver = await rig.links(other)
    rig.inside().faults.arm(faults.throttle(faulty))
    await sender.send_messages(message("accepted"))
    assert await bodies(receiver, 1) == ["accepted"]


async def test_faults_apply_in_order_and_can_be_disarmed() -> None:
    switches = FaultSwitches[faults.TransferFault]()
    switches.arm(faults.throttle("a"), times=2, skip=1)
    switches.arm(faults.detach())
    applied = [switches.next_for("A") for _ in range(4)]
    kinds = [fault and fault.kind.name for fault in applied]
    assert kinds == ["DETACH", "REFUSE", "REFUSE", None]
    switches.arm(faults.detach())
    switches.disarm()
    assert switches.next_for("a") is None
    for wrong in ({"times": 0}, {"skip": -1}):
        with pytest.raises(ValueError, match="at least"):
            switches.arm(faults.detach(), **wrong)
