"""The last keys of a range, though a table is read from the start only and has no end to read from.

The range is looked through in windows of numbers from its end backwards: a window without enough
keys is followed by a wider one below it. A window with more keys than a page answers its first
ones; what lies between those and the end is looked through next, in narrower windows. So what is
read is bounded by pages, however long the range is and however many keys it has.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

PAGE = 1000
"""Rows that one request answers at most, and the width of the first window."""
STEP = 8
"""Between the widths of two windows: ten of them span 10^12 numbers."""
REQUESTS_MAX = 40

Keys = Callable[[int, int | None, int], Awaitable[Sequence[str]]]
"""The first so many keys (``kind|number``) from a number on, and before another (None: all)."""


async def newest_keys(keys: Keys, first: int, last: int, wanted: int) -> list[str]:
    """The last keys, at most ``PAGE``, of the numbers from ``first`` to ``last`` and behind.

    Of keys that lie so oddly that REQUESTS_MAX requests do not find all, only the last ones.
    """
    lower: Sequence[str] = ()
    upper: list[str] = []
    floor, end, width, crowds = first, None, PAGE, 0
    for _ in range(REQUESTS_MAX):
        above = last + 1 if end is None else end
        start = max(above - width, floor)
        page = await keys(start, end, PAGE)
        if len(page) == PAGE:
            lower, floor, crowds = page, _highest(page, start) + 1, crowds + 1
        else:
            upper, end, crowds = [*page, *upper], start, 0
            if len(upper) >= wanted:
                break
            if start == floor:
                return [*lower, *upper][-wanted:]
        unknown = (last + 1 if end is None else end) - floor
        width = _width(unknown, crowds) if lower else width * STEP
    return upper[-wanted:]


def _width(unknown: int, crowds: int) -> int:
    """Below a crowd that was just met there is seldom another: all but an eighth. Else less."""
    share = unknown - unknown // STEP if crowds < 2 else unknown // STEP ** (crowds - 1)
    return max(share, PAGE)


def _highest(page: Sequence[str], start: int) -> int:
    """A key that somebody wrote by hand may have no number."""
    numbers = [number for key in page if (number := key.split("|")[1]).isdecimal()]
    return int(numbers[-1]) if numbers else start
