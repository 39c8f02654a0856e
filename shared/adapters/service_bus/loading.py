"""Fills the client's batches: directly where its inside is known, by ``add_message`` elsewhere.

The direct way puts encoded messages where ``add_message`` would have put them. That place is no
part of what the client documents, so it is used for the versions that it was tested with only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Protocol

from azure.servicebus import ServiceBusMessageBatch, __version__
from azure.servicebus.exceptions import MessageSizeExceededError

from shared.adapters.service_bus.conversion import client_message
from shared.adapters.service_bus.encoding import parcels, weights
from shared.messaging.model import Batch, Message, Parcel
from shared.messaging.sending import SizeExceeded
from shared.messaging.wire_size import section_bytes

Clock = Callable[[], datetime]

TESTED_FROM, TESTED_BEFORE = (7, 15), (7, 16)
"""Versions of azure-servicebus whose batches are filled directly."""

BODY = 5
"""Place of the data sections among the sections of a message."""


class Loader(Protocol):
    """Makes messages ready, and puts them into batches of the client."""

    def prepare(self, messages: Sequence[Message]) -> list[Parcel]:
        """Raises UnsendableMessage."""
        ...

    def fill(self, batch: ServiceBusMessageBatch, load: Batch) -> SizeExceeded | None:
        """Put the messages into an empty batch; answers why they do not fit."""
        ...


def loader(now: Clock, version: str = __version__) -> Loader:
    """The fast one for tested versions of the client, the careful one for all others."""
    numbers = tuple(int(part) for part in version.split(".")[:2])
    return DirectLoader(now) if TESTED_FROM <= numbers < TESTED_BEFORE else CarefulLoader(now)


class DirectLoader:
    """Encodes each message once."""

    def __init__(self, now: Clock) -> None:
        self._now = now

    def prepare(self, messages: Sequence[Message]) -> list[Parcel]:
        return parcels(messages, _milliseconds(self._now()))

    def fill(self, batch: ServiceBusMessageBatch, load: Batch) -> SizeExceeded | None:
        envelope = batch._message
        envelope[BODY] = [head + tail for _, _, head, tail in load.parcels]
        first = load.parcels[0].message
        batch._amqp_transport.set_batch_envelope_properties(
            envelope, first.message_id, first.session_id, first.partition_key
        )
        batch._count = len(load.parcels)
        batch._size = load.wire_bytes
        return None


class CarefulLoader:
    """Lets the client encode. Sizes are foretold, and may differ from those of the client."""

    def __init__(self, now: Clock) -> None:
        self._now = now

    def prepare(self, messages: Sequence[Message]) -> list[Parcel]:
        return weights(messages, _milliseconds(self._now()))

    def fill(self, batch: ServiceBusMessageBatch, load: Batch) -> SizeExceeded | None:
        empty_bytes, foretold = batch.size_in_bytes, 0
        for parcel in load.parcels:
            try:
                batch.add_message(client_message(parcel.message))
            except MessageSizeExceededError:
                surplus = batch.size_in_bytes - empty_bytes - foretold
                return SizeExceeded(-(-surplus // max(1, len(batch))))
            foretold += section_bytes(parcel.size_bytes)
        return None


def _milliseconds(time: datetime) -> int:
    return int(time.timestamp() * 1000)
