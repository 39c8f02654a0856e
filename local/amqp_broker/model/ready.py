"""An index of the messages that are ready, lowest sequence number first, grouped by session."""

import heapq
from collections.abc import Iterable, Iterator

Numbers = list[int]


class ReadyIndex:
    """Sequence numbers that wait for a receiver. A number that is added again keeps its order.

    A discarded number stays in its heap and is skipped, because it is not in `_waiting`.
    """

    def __init__(self) -> None:
        self._heaps: dict[str | None, Numbers] = {}
        self._waiting: set[int] = set()

    def add(self, group: str | None, number: int) -> None:
        if number not in self._waiting:
            self._waiting.add(number)
            heapq.heappush(self._heaps.setdefault(group, []), number)

    def discard(self, number: int) -> None:
        self._waiting.discard(number)

    def first(self, group: str | None) -> int | None:
        heap = self._heaps.get(group)
        while heap:
            if heap[0] in self._waiting:
                return heap[0]
            heapq.heappop(heap)
        self._heaps.pop(group, None)
        return None

    def take(self, group: str | None) -> int | None:
        number = self.first(group)
        if number is not None:
            self._waiting.discard(number)
            heapq.heappop(self._heaps[group])
        return number

    def groups(self) -> Iterator[tuple[int, str]]:
        """Yield the first number and the name of every session that has a ready message."""
        for group in list(self._heaps):
            first = self.first(group)
            if first is not None and group is not None:
                yield first, group

    def __len__(self) -> int:
        return len(self._waiting)


def lowest(pairs: Iterable[tuple[int, str]]) -> str | None:
    """The name with the lowest number; None without pairs."""
    return min(pairs, default=(0, None))[1]
