"""The stored schedule of a timer, from which a host that starts sees what it missed.

Sources: `ScheduleMonitor` and `StorageScheduleMonitor` of the timers extension.
"""

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from azure.core.exceptions import ResourceNotFoundError
from azure.storage.blob.aio import BlobClient

from local.functions_host.connections import Connection
from local.functions_host.host_blobs import HostBlobs
from local.functions_host.schedule import Schedule

NEVER = datetime.min.replace(tzinfo=UTC)
MONITORED_MIN = timedelta(minutes=1)
"""Schedules whose occurrences are closer together are not stored."""

_OCCURRENCES = 5


@dataclass(frozen=True, slots=True)
class ScheduleStatus:
    """When a timer last fired, and when it is next due. `updated` is when that was computed."""

    last: datetime
    next: datetime
    updated: datetime

    def as_json(self) -> dict[str, str]:
        """The form in which the host stores the status and passes it to the function."""
        times = {"Last": self.last, "Next": self.next, "LastUpdated": self.updated}
        return {name: time.isoformat() for name, time in times.items()}


@dataclass(frozen=True, slots=True)
class Initial:
    """What a host that starts does with a timer. `write` says whether to store the status."""

    status: ScheduleStatus
    past_due: bool
    write: bool


def is_monitored(schedule: Schedule, now: datetime) -> bool:
    """Whether the next occurrences are at least a minute apart."""
    due = schedule.next_after(now)
    for _ in range(_OCCURRENCES):
        previous, due = due, schedule.next_after(due)
        if due - previous < MONITORED_MIN:
            return False
    return True


def initial(schedule: Schedule, stored: ScheduleStatus | None, now: datetime) -> Initial:
    """Compare the stored status with the schedule and the time.

    1. Without a status, the timer is due at its next occurrence.
    2. If the schedule has changed and its next occurrence has passed, the same applies.
    3. If the stored occurrence has passed, it was missed.
    """
    if stored is None:
        return Initial(ScheduleStatus(NEVER, schedule.next_after(now), now), False, True)
    computed = stored.updated if stored.last == NEVER else stored.last
    expected = schedule.next_after(now if computed == NEVER else computed)
    if stored.next == expected:
        return Initial(stored, now > stored.next, False)
    if now > expected:
        expected, computed = schedule.next_after(now), now
    return Initial(ScheduleStatus(NEVER, expected, computed), False, True)


class ScheduleMonitor:
    """The blob with the status of one timer."""

    def __init__(self, blobs: HostBlobs, connection: Connection, path: str) -> None:
        self._blobs = blobs
        self._connection = connection
        self._blob: BlobClient = blobs.client(connection, path)

    async def read(self) -> ScheduleStatus | None:
        """The stored status; None if there is none, or if it cannot be parsed."""
        try:
            reader = await self._blob.download_blob()
            document = json.loads(await reader.readall())
            times = (document[name] for name in ("Last", "Next", "LastUpdated"))
            return ScheduleStatus(*(datetime.fromisoformat(each) for each in times))
        except ResourceNotFoundError:
            await self._blobs.create_container(self._connection)
        except (ValueError, KeyError, TypeError):
            pass
        return None

    async def write(self, status: ScheduleStatus) -> None:
        await self._blob.upload_blob(json.dumps(status.as_json()), overwrite=True)
