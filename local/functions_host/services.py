"""What the host offers to its listeners, and the Protocol that a listener follows."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from local.clock import Clock, utc_now
from local.functions_host.app_settings import AppSettings
from local.functions_host.functions import Function
from local.functions_host.host_json import HostConfig
from local.functions_host.invoker import Invoker
from local.functions_host.keys import Keys
from local.functions_host.storage_queues import StorageQueues


async def stops_within(stopping: asyncio.Event, seconds: float) -> bool:
    """Wait up to `seconds`; return at once, and True, when the host stops."""
    try:
        async with asyncio.timeout(seconds):
            return await stopping.wait()
    except TimeoutError:
        return False


@dataclass(frozen=True, slots=True)
class HostOptions:
    """What one may set about the host itself, beyond host.json."""

    port: int = 0  # 0: a free one
    lease_seconds: int = 600  # a message being processed stays invisible; renewed at half time
    drain_seconds: float = 10.0  # running invocations may take this long to end at a stop
    keys_file: Path | None = None  # None: keys that end with the host


@dataclass(frozen=True, slots=True)
class Services:
    """Everything that a listener needs."""

    settings: AppSettings
    config: HostConfig
    options: HostOptions
    invoker: Invoker
    queues: StorageQueues
    keys: Keys
    now: Clock = utc_now


class Listener(Protocol):
    """Watches one function's trigger and invokes the function."""

    async def start(self) -> None:
        """Begin to watch."""
        ...

    async def stop(self) -> None:
        """Take nothing new; return when what runs has ended. May be cancelled."""
        ...


# To support another trigger: write a listener in a module of its own and add it to LISTENERS
# (listeners.py), or hand it to FunctionsHost.
ListenerFactory = Callable[[Services, Function], Listener]
