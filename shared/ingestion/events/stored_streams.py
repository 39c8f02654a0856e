"""Finds the names under which a stream is stored, which are those of its first commit. Azure
compares the names of namespaces, hubs and consumer groups without case."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from shared.ingestion.model import Checkpoint, Stream
from shared.ingestion.store.events import EventStore

log = logging.getLogger(__name__)


def twins(streams: Iterable[Stream]) -> dict[Stream, list[Stream]]:
    """The streams that are the same to Azure, by their names in one case."""
    same = defaultdict[Stream, list[Stream]](list)
    for stream in streams:
        same[stream.in_one_case].append(stream)
    return dict(same)


def furthest(checkpoints: Mapping[Stream, Checkpoint | None]) -> Stream:
    """The stream with the checkpoint that counts, for all processes alike."""

    def position(stream: Stream) -> tuple[int, str]:
        at = checkpoints[stream]
        return (-2 if at is None else at.sequence, stream.key)

    return max(checkpoints, key=position)


@dataclass(slots=True)
class StoredStreams:
    """Finds the stored names of streams, and remembers them."""

    store: EventStore
    _known: dict[Stream, list[Stream]] = field(default_factory=dict)

    async def find(self, stream: Stream) -> Stream:
        """The stream as it is stored. A new one gets names in one case. Raises StoreUnavailable,
        and RowUnreadable if one of several checkpoints that differ only by case cannot be read."""
        new = stream.in_one_case
        if new not in self._known:
            self._known = twins(await self.store.streams()) | {
                each: names for each, names in self._known.items() if len(names) == 1
            }
        names = self._known.get(new, [new])
        if len(names) > 1:
            names = self._known[new] = [await self._furthest(names)]
        return names[0]

    async def _furthest(self, names: Iterable[Stream]) -> Stream:
        checkpoints = {each: (await self.store.load(each)).checkpoint for each in names}
        chosen = furthest(checkpoints)
        for each in checkpoints.keys() - {chosen}:
            log.warning("[stream_superseded] %s: %s", each.key, superseded_by(chosen))
        return chosen


def superseded_by(chosen: Stream) -> str:
    """What operators are told about a stream whose checkpoint does not count."""
    return (
        f"not used, because the names of {chosen.key} differ only by case and its checkpoint is "
        "further"
    )
