"""What the host provides to its listeners, and the protocol that a listener implements."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from local.clock import Clock, utc_now
from local.functions_host.app_settings import AppSettings
from local.functions_host.connections import Identities
from local.functions_host.functions import Function
from local.functions_host.host_blobs import HostBlobs
from local.functions_host.host_json import HostConfig
from local.functions_host.invoker import Invoker
from local.functions_host.keys import Keys
from local.functions_host.storage_queues import StorageQueues


@dataclass(frozen=True, slots=True)
class HostOptions:
    """Options of the host itself, beyond host.json."""

    port: int = 0  # 0 takes a free port.
    lease_seconds: int = 600  # How long a message in progress is invisible; renewed at half time.
    drain_seconds: float = 10.0  # How long running invocations may take at shutdown.
    keys_file: Path | None = None  # None: new keys for each start.


def _keep_running(_reason: str) -> None:
    return None


@dataclass(frozen=True, slots=True)
class Services:
    """Everything that a listener needs."""

    settings: AppSettings
    config: HostConfig
    options: HostOptions
    invoker: Invoker
    queues: StorageQueues
    keys: Keys
    blobs: HostBlobs = field(default_factory=HostBlobs)
    host_id: str = "local"
    now: Clock = utc_now
    end: Callable[[str], None] = _keep_running
    """Ends the host for this reason."""
    identities: Identities = field(default_factory=Identities)


class Listener(Protocol):
    """Listens to one function's trigger and invokes the function."""

    async def start(self) -> None:
        """Start listening."""
        ...

    async def stop(self) -> None:
        """Accept nothing new, and return when running invocations have ended. May be cancelled."""
        ...


# To support another trigger, write a listener in its own module. Add it to LISTENERS
# (listeners.py), or pass it to FunctionsHost.
ListenerFactory = Callable[[Services, Function], Listener]
