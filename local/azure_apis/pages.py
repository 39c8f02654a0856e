"""Pages of a list: Azure answers with a part and with the address of the next part."""

from collections.abc import Mapping, Sequence
from typing import TypeVar
from urllib.parse import urlencode

PAGE_MAX = 100
"""The most items of a page."""

T = TypeVar("T")


def page(items: Sequence[T], query: Mapping[str, str], url: str) -> tuple[Sequence[T], str | None]:
    """The items that `$skip` and `$top` name, and the address of the next page.

    As a service that counts nothing would, a full page names a next one, which may be empty.
    ValueError if `$skip` or `$top` is not a number that is possible.
    """
    skip, top = int(query.get("$skip", "0")), min(int(query.get("$top", PAGE_MAX)), PAGE_MAX)
    if skip < 0 or top < 1:
        raise ValueError(f"$skip={skip}&$top={top}")
    some = items[skip : skip + top]
    if len(some) < top:
        return some, None
    return some, f"{url}?{urlencode({**query, '$skip': skip + top, '$top': top})}"
