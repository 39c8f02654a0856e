"""The ports of the flows: state store, queue sender, capacity control and permissions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from shared.autoscaling.deciding.decide import LogEntry
from shared.autoscaling.deciding.stretches import Stretch
from shared.autoscaling.declaring import AppServicePlan
from shared.autoscaling.plan_facts import PlanReading
from shared.autoscaling.state import Override, ScalingState
from shared.values.measurements import MetricValue


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A resource's state as it was read, at ``read_at`` by the store's clock. ``version``
    identifies the rows, for the conditional write. ``unreadable`` names each row that cannot be
    read, with the reason. ``decided`` is the newest readable decision, if there is one."""

    resource_name: str
    state: ScalingState
    read_at: datetime
    version: Any = None
    unreadable: tuple[str, ...] = ()
    decided: LogEntry | None = None


Wrote = Callable[[Sequence[LogEntry], ScalingState], None]
"""Is called with the log entries that a store has written, and the state of their resource."""


def wrote_nothing(entries: Sequence[LogEntry], state: ScalingState) -> None:
    """Ignore what was written."""


class StateStore(Protocol):
    async def load(self, resource_name: str) -> Snapshot:
        """Read the state without the log, in one round trip. Raises StateUnreadable if a row that
        decisions depend on cannot be read."""
        ...

    async def commit(
        self, snapshot: Snapshot, state: ScalingState, entries: Sequence[LogEntry] = ()
    ) -> None:
        """Write the changes since the snapshot and the entries, in one transaction. The last
        decision among them becomes ``Snapshot.decided``. A decision that requests nothing replaces
        the same one.

        Raises StateConflict if a row to write has changed since the snapshot, if the entries have a
        decision and there is a newer one, or if the log already has one of the entries. The cause
        may be a repetition of this commit after a lost reply: the caller reads the state again.
        """
        ...

    async def put_override(
        self, snapshot: Snapshot, override: Override | None, entry: LogEntry
    ) -> None:
        """Replace the override, or remove it if ``override`` is None, and write the entry, in one
        transaction. Raises StateConflict as ``commit`` does. If the snapshot has no override
        either, only the entry is written, and an override that was set meanwhile stays."""
        ...

    async def record(self, entry: LogEntry) -> None:
        """Write one entry. It replaces the same entry if the log already has it."""
        ...

    async def log(
        self,
        resource_name: str,
        limit: int = 50,
        since: datetime | None = None,
        *,
        before: datetime | None = None,
        changes_only: bool = False,
    ) -> list[LogEntry]:
        """The newest entries, newest first, from ``since`` on and from before ``before``.
        ``changes_only`` leaves out decisions that request nothing, and so reads far less. Among
        entries of the same time, epoch and rank, the last one written comes first; the limit may
        cut such a group anywhere. A row that cannot be read becomes an entry of the kind
        ``unreadable``, with the reason."""
        ...

    async def course(
        self, resource_name: str, since: datetime, before: datetime
    ) -> tuple[list[Stretch], int]:
        """What the decisions that requested nothing saw, oldest first, in whole quarters of an hour
        from that of ``since`` to that of ``before``, and the number of quarters of which it is not
        known."""
        ...

    async def prune_log(self, resource_name: str, before: datetime) -> int:
        """Delete the entries older than ``before``, and return the number of rows. Decisions that
        request nothing share a row for a quarter of an hour, which is deleted as a whole."""
        ...

    async def close(self) -> None: ...


class QueueSender(Protocol):
    async def send_texts(self, texts: Sequence[str]) -> None:
        """Send each text as one message. If it raises, any of them may have been sent; receivers
        recognize repetitions."""
        ...

    async def close(self) -> None: ...


class CapacityControl(Protocol):
    async def read(self, target: AppServicePlan, /) -> PlanReading:
        """The capacity that the target has. Raises CapacityRefused if the target does not exist or
        the identity may not read it, and CapacityDelayed if it cannot be read now."""
        ...

    async def describe(self, target: AppServicePlan, /) -> MetricValue:
        """The same, with what else scales the target, as PlanFacts."""
        ...

    async def change(
        self, target: AppServicePlan, /, capacity: int, read: PlanReading
    ) -> int | None:
        """Set the capacity of the target, which was ``read`` just before. Returns the capacity that
        it has afterwards; None if the change is still under way. Raises CapacityRefused if nothing
        was changed and another attempt would not help, and CapacityDelayed on any other failure."""
        ...

    async def close(self) -> None: ...


class Permissions(Protocol):
    """Reads which permissions the app's identity has."""

    async def lacking(self, target: AppServicePlan) -> Sequence[str]:
        """The permissions for scaling the target that the identity lacks."""
        ...

    async def lacking_to_join(self, environment: str, /) -> Sequence[str]:
        """Those for scaling a plan of this App Service Environment that it lacks on it."""
        ...

    async def may_list(self, target: AppServicePlan, /) -> bool:
        """True if it may list the plans of the resource group of the target."""
        ...

    async def close(self) -> None: ...
