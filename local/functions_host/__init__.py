"""A small Azure Functions host for one machine.

It loads an app through the official Python worker library, in its own process. It implements the
semantics of the triggers: leases, retries, poison queues, NCRONTAB, routes. local/FIDELITY.md lists
the differences from the real host.
"""

from local.functions_host.errors import HostStartFailed
from local.functions_host.host import FunctionsHost
from local.functions_host.host_json import HostConfig, QueueOptions
from local.functions_host.invoker import InvocationCounts
from local.functions_host.logs import configure_logging
from local.functions_host.services import HostOptions

__all__ = [
    "FunctionsHost",
    "HostConfig",
    "HostOptions",
    "HostStartFailed",
    "InvocationCounts",
    "QueueOptions",
    "configure_logging",
]
