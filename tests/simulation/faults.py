"""Calls of simulated ports. Each pauses before and after, and a fault may strike in either pause.

A fault in the first pause means that the call did not arrive; in the second, that its reply is
lost.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar

from shared.ingestion.model import Stream
from tests.simulation.scheduler import Outage, pause

T = TypeVar("T")
Adapter = TypeVar("Adapter", bound=type)
Pause = Callable[[Any], Awaitable[None]]


@contextmanager
def failing_as(error: Exception) -> Iterator[None]:
    """Turn an outage of the scheduler into this error."""
    try:
        yield
    except Outage as outage:
        raise error from outage


def pausing(
    *calls: str,
    error: type[Exception] = Outage,
    by: Pause = lambda _adapter: pause(),
    replies: bool = True,
) -> Callable[[Adapter], Adapter]:
    """Let these methods of a class pause, and turn outages into this error.

    `by` is the pause of an adapter. Without `replies`, no reply is ever lost.
    """

    def decorated(adapter: Adapter) -> Adapter:
        for name in calls:
            setattr(adapter, name, _paused(getattr(adapter, name), error, by, replies))
        return adapter

    return decorated


def _paused(
    call: Callable[..., Awaitable[T]], error: type[Exception], by: Pause, replies: bool
) -> Callable[..., Awaitable[T]]:
    @wraps(call)
    async def paused(adapter: Any, *args: Any, **options: Any) -> T:
        with failing_as(error(call.__name__)):
            await by(adapter)
            answer = await call(adapter, *args, **options)
            if replies:
                await by(adapter)
        return answer

    return paused


def stream_of(partition_id: str) -> Stream:
    return Stream("ns", "hub", "$Default", partition_id)


async def once(attempt: Callable[[], Awaitable[T]], worth: Callable[[Exception], bool]) -> T:
    return await attempt()


async def one_by_one(work: Iterable[Callable[[], Awaitable[None]]]) -> None:
    for piece in work:
        await piece()
