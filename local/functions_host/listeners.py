"""Creates a listener for each function. One server handles HTTP for all functions."""

import logging
from collections.abc import Iterable, Mapping

from local.functions_host.event_hub_listener import EventHubListener
from local.functions_host.functions import (
    EVENT_HUB_TRIGGER,
    HTTP_TRIGGER,
    QUEUE_TRIGGER,
    SERVICE_BUS_TRIGGER,
    TIMER_TRIGGER,
    Function,
)
from local.functions_host.logs import log_event
from local.functions_host.queue_listener import QueueListener
from local.functions_host.retries import warn_of_ignored_retries
from local.functions_host.service_bus_listener import ServiceBusListener
from local.functions_host.services import Listener, ListenerFactory, Services
from local.functions_host.timer_listener import TimerListener

LISTENERS: Mapping[str, ListenerFactory] = {
    EVENT_HUB_TRIGGER: EventHubListener,
    QUEUE_TRIGGER: QueueListener,
    SERVICE_BUS_TRIGGER: ServiceBusListener,
    TIMER_TRIGGER: TimerListener,
}


def create_listeners(
    services: Services, functions: Iterable[Function], factories: Mapping[str, ListenerFactory]
) -> list[Listener]:
    """Create a listener for each supported trigger. Log a warning for the others."""
    listeners: list[Listener] = []
    for function in functions:
        _warn(function)
        if function.trigger.kind == HTTP_TRIGGER:
            continue
        factory = factories.get(function.trigger.kind)
        if factory is None or function.inputs:
            _warn_not_listened(function)
        else:
            listeners.append(factory(services, function))
    return listeners


def _warn(function: Function) -> None:
    warn_of_ignored_retries(function)
    for binding in function.outputs.values():
        if binding.kind != "http":
            log_event(
                logging.WARNING,
                "output_not_supported",
                f"{function.name}: an invocation that sets {binding.name} ({binding.kind}) fails",
                function=function.name,
            )


def _warn_not_listened(function: Function) -> None:
    kinds = ", ".join(binding.kind for binding in function.inputs) or function.trigger.kind
    log_event(
        logging.WARNING,
        "trigger_not_supported",
        f"{function.name} is indexed but does not run: the local host does not support {kinds}",
        function=function.name,
    )
