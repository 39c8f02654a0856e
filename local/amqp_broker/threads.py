"""The stand-in in a thread of its own, for tests that block."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager

from local.amqp_broker.server import AmqpStandIn

STOP_SECONDS = 10.0


@contextmanager
def in_thread(stand_in: AmqpStandIn) -> Iterator[AmqpStandIn]:
    """Run it in another thread until the end of the `with`.

    Entities may be declared and faults armed from here, as long as no client is in the middle
    of something; a `VirtualClock` may be moved at any time.
    """
    started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()
    thread = threading.Thread(
        target=lambda: asyncio.run(_serve(stand_in, started)), name="amqp-stand-in", daemon=True
    )
    thread.start()
    loop, stop = started.result(STOP_SECONDS)
    try:
        yield stand_in
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(STOP_SECONDS)


async def _serve(
    stand_in: AmqpStandIn, started: "Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]]"
) -> None:
    stop = asyncio.Event()
    try:
        async with stand_in:
            started.set_result((asyncio.get_running_loop(), stop))
            await stop.wait()
    except Exception as error:
        if started.done():
            raise
        started.set_exception(error)
