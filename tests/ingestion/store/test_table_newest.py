"""Finding the last keys of a range, which can only be read from its start, with few requests."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Sequence

import pytest

from shared.ingestion.store.newest import PAGE, newest_keys


class Range:
    """A range of keys with these numbers, and counts of the requests and of the keys read."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self.numbers = sorted(set(numbers))
        self.requests = 0
        self.read = 0

    async def keys(self, start: int, end: int | None, most: int) -> list[str]:
        self.requests += 1
        first = bisect_left(self.numbers, start)
        last = len(self.numbers) if end is None else bisect_left(self.numbers, end)
        numbers = self.numbers[first:last][:most]
        self.read += len(numbers)
        return [f"dead|{number:019d}" for number in numbers]


def random_numbers(seed: int) -> tuple[list[int], int]:
    """Random numbers, single ones and dense groups, up to a last number."""
    rng = random.Random(seed)
    last = 10 ** rng.randint(1, 12)
    numbers = [rng.randint(0, last) for _ in range(rng.choice([0, 1, 40, 300]))]
    for _ in range(rng.randint(0, 4)):
        start, count, step = (
            rng.randint(0, last),
            rng.choice([30, 1000, 9000]),
            rng.choice([1, 100]),
        )
        numbers += [n for n in range(start, start + count * step, step) if n <= last]
    return numbers, last


@pytest.mark.parametrize("seed", range(20))
async def test_the_last_keys_are_found_by_a_bounded_number_of_requests(seed: int) -> None:
    numbers, last = random_numbers(seed)
    kept = Range(numbers)
    keys = await newest_keys(kept.keys, 0, last, 50)
    assert keys == [f"dead|{number:019d}" for number in kept.numbers[-50:]]
    assert kept.requests <= 30
    assert kept.read <= kept.requests * PAGE


async def test_keys_after_the_last_number_are_found_too() -> None:
    kept = Range([5, 2001, 2002])
    assert [int(key[-4:]) for key in await newest_keys(kept.keys, 0, 2000, 2)] == [2001, 2002]


async def test_finding_the_last_fifty_keys_does_not_read_a_million() -> None:
    kept = Range(range(1_000_000))
    assert len(await newest_keys(kept.keys, 0, 999_999, 50)) == 50
    assert (kept.requests, kept.read) == (2, PAGE)
