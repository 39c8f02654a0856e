"""In-memory adapters of the messaging ports: a queue, and a link to it that fails on request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from shared.messaging.encoder import encode_all
from shared.messaging.model import BATCH_MESSAGES_MAX, Batch, BatchLimits, EncodedMessage
from shared.messaging.send_state import (
    Accepted,
    BatchRefused,
    Disconnected,
    Outcome,
    ServerBusy,
    SizeExceeded,
)
from shared.values.messages import Message


class Fault(Enum):
    """What happens to one batch that is sent."""

    NONE = "none"
    BUSY = "busy"
    REFUSED = "refused, because a message is wrong"
    LATE = "timed out, and the batch arrives after the next one"
    DROP_BEFORE = "disconnected before the batch was accepted"
    DROP_AFTER = "disconnected after the batch was accepted"


@dataclass(slots=True)
class MemoryQueue:
    """A queue with duplicate detection.

    ``accepted`` holds the batches that arrived. ``messages`` holds their messages in the order of
    arrival, without duplicates.
    """

    batch_bytes: int = 262_144
    batch_messages: int = BATCH_MESSAGES_MAX
    message_bytes: int = 0
    """The largest message outside a batch, if it is larger than a batch."""

    requires_session: bool = False
    counted_extra: int = 0
    """Bytes that the queue counts for each message in addition to its bytes on the wire."""

    messages: list[Message] = field(default_factory=list)
    accepted: list[Batch] = field(default_factory=list)
    _ids: set[str | None] = field(default_factory=set)

    def too_large(self, batch: Batch) -> bool:
        counted = batch.wire_bytes + self.counted_extra * len(batch.encoded)
        limit = max(self.batch_bytes, self.message_bytes if len(batch.encoded) == 1 else 0)
        return counted > limit or len(batch.encoded) > self.batch_messages

    def refuses(self, batch: Batch) -> bool:
        return self.requires_session and any(not m.message.session_id for m in batch.encoded)

    def accept(self, batch: Batch) -> None:
        self.accepted.append(batch)
        for item in batch.encoded:
            if item.message.message_id not in self._ids:
                self._ids.add(item.message.message_id)
                self.messages.append(item.message)


class MemoryLink:
    """See BatchLink. The first batch that is sent meets the first fault, and so on; batches after
    the last fault are accepted.

    ``announced`` returns the limit of a batch, in bytes, that the link announces when it opens.
    """

    def __init__(
        self,
        queue: MemoryQueue,
        faults: Iterable[Fault] = (),
        announced: Callable[[], int] = lambda: 262_144,
        *,
        busy_seconds: float | None = 2.0,
    ) -> None:
        self.queue = queue
        self.opened = 0
        self._faults = iter(faults)
        self._announced = announced
        self._busy_seconds = busy_seconds
        self._late: list[Batch] = []
        self._broken = True

    def prepare(self, messages: Sequence[Message]) -> list[EncodedMessage]:
        return encode_all(messages, 0)

    async def open(self) -> BatchLimits:
        self.opened += 1
        self._broken = False
        return BatchLimits(self._announced(), self.queue.batch_messages, self.queue.message_bytes)

    async def send(self, batch: Batch) -> Outcome:
        if self._broken:
            raise ConnectionError("the link is not open")
        fault = next(self._faults, Fault.NONE)
        if fault is Fault.BUSY:
            return ServerBusy(self._busy_seconds)
        if fault is Fault.REFUSED:
            return BatchRefused(fault.value)
        if fault is Fault.DROP_BEFORE:
            return self._lost(fault)
        if self.queue.too_large(batch):
            return SizeExceeded()
        if self.queue.refuses(batch):
            return BatchRefused("a message has no session id")
        if fault is Fault.LATE:
            self._late.append(batch)
            return self._lost(fault)
        self.queue.accept(batch)
        self._accept_late()
        return Accepted() if fault is Fault.NONE else self._lost(fault)

    async def close(self) -> None: ...

    def _lost(self, fault: Fault) -> Outcome:
        self._broken = True
        return Disconnected(fault.value)

    def _accept_late(self) -> None:
        for batch in self._late:
            self.queue.accept(batch)
        self._late.clear()
