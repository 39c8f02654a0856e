"""Running a function by hand, without its trigger."""

from datetime import datetime

from local.functions_host.event_hub_invocation import event_hub_by_hand
from local.functions_host.functions import (
    EVENT_HUB_TRIGGER,
    HTTP_TRIGGER,
    SERVICE_BUS_TRIGGER,
    TIMER_TRIGGER,
    Function,
)
from local.functions_host.service_bus_invocation import service_bus_by_hand
from local.functions_host.timer_listener import timer_datum
from local.functions_host.worker import Invocation, text_datum


def manual_invocation(function: Function, text: str, *, now: datetime) -> Invocation:
    """The invocation of `function` on `text`; a timer needs none. HTTP raises `ValueError`."""
    name, kind = function.trigger.name, function.trigger.kind
    if kind == HTTP_TRIGGER:
        raise ValueError(f"{function.name} has an HTTP trigger: send it a request")
    if kind == TIMER_TRIGGER:
        return Invocation(name, timer_datum(last=None, due=now, past_due=False))
    if kind == SERVICE_BUS_TRIGGER:
        return service_bus_by_hand(function.trigger, text)
    if kind == EVENT_HUB_TRIGGER:
        return event_hub_by_hand(function.trigger, text)
    return Invocation(name, text_datum(text))
