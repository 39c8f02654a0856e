"""The product's functions in the local host, and the one object that holds their parts."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from local.functions_host.host import FunctionsHost
from shared.wiring.app import App


@asynccontextmanager
async def hosted_app(host: FunctionsHost) -> AsyncIterator[App]:
    """Run the host; the app is closed once no invocation runs any more."""
    async with AsyncExitStack() as stack:
        await host.start()
        app: App = sys.modules["function_app"].app
        stack.push_async_callback(app.close)
        stack.push_async_callback(host.stop)
        yield app
