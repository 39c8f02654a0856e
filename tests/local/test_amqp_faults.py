"""Faults of the stand-in, as the real clients see them."""

from datetime import timedelta

import pytest
from azure.servicebus.exceptions import (
    ServiceBusConnectionError,
    ServiceBusServerBusyError,
)

from local.amqp_broker import faults
from local.faults import FaultSwitches
from tests.local.amqp_rig import SIDE_BY_SIDE, Rig, bodies, message, scenario, side_by_side

pytestmark = [*SIDE_BY_SIDE, pytest.mark.usefixtures(side_by_side.__name__)]

QUICK_RETRIES = {"retry_total": 3, "retry_backoff_factor": 0.01}


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
