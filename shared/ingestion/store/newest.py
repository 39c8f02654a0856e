"""Finds the last keys of a range, although Table Storage reads only from its start: in windows of
numbers from the end backwards, wider ones where there are few keys, narrower ones where there are
more than a page. The number of requests is bounded for any range."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

PAGE = 1000
"""Maximum number of rows that one request returns, and the width of the first window."""
STEP = 8
"""Factor between the widths of two windows, so that ten windows span 10^12 numbers."""
REQUESTS_MAX = 40

Keys = Callable[[int, int | None, int], Awaitable[Sequence[str]]]
"""Returns the first keys (``kind|number``) from a start to an end (None: no end), up to a limit."""


async def newest_keys(keys: Keys, first: int, last: int, limit: int) -> list[str]:
    """The last keys from ``first`` on, in order: at most ``limit``, which is at most PAGE. Starts
    at ``last``, but also finds higher numbers. After REQUESTS_MAX requests there may be fewer."""
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
            if len(upper) >= limit:
                break
            if start == floor:
                return [*lower, *upper][-limit:]
        unread = (last + 1 if end is None else end) - floor
        width = _width(unread, crowds) if lower else width * STEP
    return upper[-limit:]


def _width(unread: int, crowds: int) -> int:
    """The width of the next window: all unread numbers except an eighth, but less after several
    ``crowds``, windows in a row with more keys than a page."""
    share = unread - unread // STEP if crowds < 2 else unread // STEP ** (crowds - 1)
    return max(share, PAGE)


def _highest(page: Sequence[str], start: int) -> int:
    """The highest number of a page's keys. A key that was written by hand may have no number."""
    numbers = [number for key in page if (number := key.split("|")[1]).isdecimal()]
    return int(numbers[-1]) if numbers else start
