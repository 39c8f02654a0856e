"""Finds the last keys of a range, although Table Storage only reads a range from its start.

The search goes through windows of numbers, from the end of the range backwards. If a window has too
few keys, the search continues below it, in a wider window. If a window has more keys than a page,
the service returns its first keys, and the search continues between these and the end of the
window, in narrower windows. The number of requests is bounded for any length of the range and any
number of keys.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

PAGE = 1000
"""Maximum number of rows that one request returns, and the width of the first window."""
STEP = 8
"""Factor between the widths of two windows, so that ten windows span 10^12 numbers."""
REQUESTS_MAX = 40

Keys = Callable[[int, int | None, int], Awaitable[Sequence[str]]]
"""Arguments: start, end, limit. Returns the first keys (``kind|number``) with numbers from start
(inclusive) to end (exclusive; None: no end), at most as many as the limit.
"""


async def newest_keys(keys: Keys, first: int, last: int, limit: int) -> list[str]:
    """The last keys with numbers from ``first`` on, in their order: at most ``limit``, which is at
    most PAGE.

    The search starts at ``last``, but also finds keys with higher numbers. If REQUESTS_MAX requests
    are not enough, the result has only the last ones of these keys.
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
            if len(upper) >= limit:
                break
            if start == floor:
                return [*lower, *upper][-limit:]
        unread = (last + 1 if end is None else end) - floor
        width = _width(unread, crowds) if lower else width * STEP
    return upper[-limit:]


def _width(unread: int, crowds: int) -> int:
    """The width of the next window, after ``crowds`` windows in a row with more keys than a page.

    Two such windows in a row are rare. After at most one such window, the next window covers all
    unread numbers except an eighth. After each further one, the next window is narrower.
    """
    share = unread - unread // STEP if crowds < 2 else unread // STEP ** (crowds - 1)
    return max(share, PAGE)


def _highest(page: Sequence[str], start: int) -> int:
    """The highest number of a page's keys. A key that was written by hand may have no number."""
    numbers = [number for key in page if (number := key.split("|")[1]).isdecimal()]
    return int(numbers[-1]) if numbers else start
