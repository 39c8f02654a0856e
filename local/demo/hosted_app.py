"""Runs the app in the local functions host and gives access to its one `App` object."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from local.functions_host.errors import HostStartFailed
from local.functions_host.host import FunctionsHost
from shared.wiring.app import App


@asynccontextmanager
async def hosted_app(host: FunctionsHost) -> AsyncIterator[App]:
    """Run the host. The app is closed after the last invocation has ended or was cancelled.

    Raises HostStartFailed if the app cannot run, for which the host itself keeps running.
    """
    async with AsyncExitStack() as stack:
        await host.start()
        stack.push_async_exit(host)
        if host.load_error:
            raise HostStartFailed(host.load_error)
        module = sys.modules["function_app"]
        if failure := getattr(module, "failure", None):
            raise HostStartFailed(f"function_app.py cannot be loaded: {failure}")
        app: App = module.app
        stack.pop_all()
        stack.push_async_callback(app.close)
        stack.push_async_exit(host)
        yield app
