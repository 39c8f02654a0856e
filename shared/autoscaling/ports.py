"""What the flows need from the outside, and no more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from shared.autoscaling.deciding.decide import LogEntry
from shared.autoscaling.declaring import CapacityTarget, MetricSource
from shared.autoscaling.measurements import MetricValue
from shared.autoscaling.state import Override, ScalingState


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A resource's state as it was read: ``read_at`` is the store's clock, ``version`` its mark.

    ``unreadable`` names the rows that the state does without, each with the reason.
    """

    resource_name: str
    state: ScalingState
    read_at: datetime
    version: Any = None
    unreadable: tuple[str, ...] = ()


class StateStore(Protocol):
    """Remembers the state and the decision log of each resource."""

    async def load(self, resource_name: str) -> Snapshot:
        """Read everything but the log, in one round trip.

        Raises StateUnreadable where a row that decisions depend on cannot be read.
        """
        ...

    async def commit(
        self, snapshot: Snapshot, state: ScalingState, entries: Sequence[LogEntry] = ()
    ) -> None:
        """Write what differs from the snapshot, and the entries: all of it or nothing.

        Raises StateConflict where a row that it writes has changed since the snapshot, or one of
        the entries is in the log already. That may be this commit's own doing, where the reply to
        it was lost and the client repeated it: whoever reads again sees it done.
        """
        ...

    async def put_override(
        self, snapshot: Snapshot, override: Override | None, entry: LogEntry
    ) -> None:
        """Replace the override, or remove it with None, and write the entry: both or none.

        Raises StateConflict as ``commit`` does. Where the snapshot has no override, None writes
        the entry alone: an override that came in meanwhile counts as set after it.
        """
        ...

    async def record(self, entry: LogEntry) -> None:
        """Write one entry, whether or not it is there already."""
        ...

    async def log(
        self, resource_name: str, limit: int = 50, since: datetime | None = None
    ) -> list[LogEntry]:
        """The newest entries, newest first; none from before ``since``.

        Of entries of one time, epoch and rank the last one written comes first; where the limit
        cuts between them, any of them are answered.
        A row that cannot be read is an entry of the kind ``unreadable``, which says why.
        """
        ...

    async def prune_log(self, resource_name: str, before: datetime) -> int:
        """Delete the entries older than ``before``; answers how many."""
        ...

    async def close(self) -> None: ...


class MetricReader(Protocol):
    """Reads metric sources."""

    async def read(self, source: MetricSource) -> MetricValue:
        """The source's value now, with the source's own time.

        Raises ReadFailed where the source is not there or has no value, for a plan's capacity what
        CapacityControl raises, and the client's own error where the service does not answer.
        """
        ...

    async def close(self) -> None: ...


class CapacityControl(Protocol):
    """Reads and changes the capacity of a target."""

    async def read(self, target: CapacityTarget) -> MetricValue:
        """The capacity that the target is set to.

        Raises CapacityRefused where there is no such target, or the identity may not read it, and
        CapacityDelayed where it cannot be asked now.
        """
        ...

    async def change(self, target: CapacityTarget, capacity: int) -> None:
        """Set the capacity and wait until that is done.

        Raises CapacityRefused where nothing was changed and asking again would not help: no such
        target, a capacity that it cannot have, no permission. Raises CapacityDelayed otherwise.
        """
        ...

    async def close(self) -> None: ...


class Permissions(Protocol):
    """Knows what the app's identity may do."""

    async def lacking(self, target: CapacityTarget) -> Sequence[str]:
        """The actions that scaling the target takes and the identity does not have."""
        ...

    async def close(self) -> None: ...
