"""The host: loads an app, listens to its triggers, runs its functions, and stops cleanly."""

import asyncio
import logging
import os
from collections.abc import Awaitable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

from local.functions_host.admin import manual_invocation
from local.functions_host.app_settings import AppSettings, read_app_settings
from local.functions_host.connections import Identities
from local.functions_host.errors import AppNotLoaded, HostStartFailed
from local.functions_host.functions import Function, read_functions
from local.functions_host.host_blobs import HostBlobs, host_id
from local.functions_host.host_json import HostConfig, read_host_json
from local.functions_host.http_server import ADDRESS, Endpoint, HttpServer
from local.functions_host.invoker import InvocationCounts, Invoker
from local.functions_host.keys import Keys, new_keys, read_keys
from local.functions_host.listeners import LISTENERS, create_listeners
from local.functions_host.logs import log_event
from local.functions_host.retries import with_default_retry
from local.functions_host.services import HostOptions, Listener, ListenerFactory, Services
from local.functions_host.storage_queues import StorageQueues
from local.functions_host.worker import Outcome, Worker
from local.functions_host.worker_deaths import DEATHS_MAX, WorkerDeaths
from shared.settings.host_json import APP_FOLDER

CLOSING_SECONDS_MAX = 20.0
"""After the last invocation, listeners have this long to close their connections."""


class FunctionsHost:
    """Runs one function app in this process. The worker library is global, so only one can run.

    `settings` override the process environment, which overrides local.settings.json. While the
    host runs, the app's environment contains all of them. `config` replaces host.json.
    """

    _occupant: ClassVar["FunctionsHost | None"] = None

    def __init__(
        self,
        app_dir: Path,
        *,
        settings: Mapping[str, str] | None = None,
        config: HostConfig | None = None,
        options: HostOptions | None = None,
        listeners: Mapping[str, ListenerFactory] = LISTENERS,
    ) -> None:
        self._app_dir = app_dir.resolve()
        self._given_settings = dict(settings or {})
        self._given_config = config
        self._options = options or HostOptions()
        self._factories = listeners
        self._worker = Worker(self._app_dir)
        self._identities = Identities()
        self._queues = StorageQueues(self._identities)
        self._blobs = HostBlobs(self._identities)
        self._worker_deaths = WorkerDeaths()
        self._ended = asyncio.Event()
        self._end_reason = ""
        self._load_error = ""
        self._functions: tuple[Function, ...] = ()
        self._services: Services | None = None
        self._http: HttpServer | None = None
        self._started: list[Listener] = []
        self._environment: dict[str, str] | None = None

    @property
    def functions(self) -> Sequence[Function]:
        """The app's enabled functions."""
        return self._functions

    @property
    def load_error(self) -> str:
        """Why the app could not be imported; empty if it was. Without it, nothing has a route."""
        return self._load_error

    @property
    def endpoints(self) -> Sequence[Endpoint]:
        """The HTTP-triggered functions with their routes."""
        return self._http.endpoints if self._http else ()

    @property
    def url(self) -> str:
        """The address of the running host, without a trailing slash."""
        assert self._http is not None, "the host is not started"
        return f"http://{ADDRESS}:{self._http.port}"

    @property
    def keys(self) -> Keys:
        """The keys for HTTP functions and /admin."""
        assert self._services is not None, "the host is not started"
        return self._services.keys

    @property
    def counts(self) -> Mapping[str, InvocationCounts]:
        """Ended invocations by function. A function that never ran is absent."""
        return self._services.invoker.counts if self._services else {}

    async def start(self) -> None:
        """Load the app and start listening. Raises `HostStartFailed`.

        An app that cannot be imported does not raise: the host then runs without functions.
        """
        if FunctionsHost._occupant is not None:
            raise HostStartFailed(
                "a functions host already runs in this process: stop it first, or start another "
                "process"
            )
        FunctionsHost._occupant = self
        try:
            await self._start()
        except BaseException:
            await self.stop(drain=False)
            raise

    async def stop(self, *, drain: bool = True) -> None:
        """Stop listening. Running invocations have `drain_seconds` to end, or are cancelled.

        Afterwards no invocation runs, so the caller can close the app's resources and rely on
        the app not opening them again.
        """
        started, self._started = self._started, []
        if started:
            limits = (self._options.drain_seconds, CLOSING_SECONDS_MAX) if drain else (0, 0)
            await self._drain([each.stop() for each in started], *limits)
        await self._queues.close()
        await self._blobs.close()
        await self._identities.close()
        if FunctionsHost._occupant is self:
            self._worker.close()
            self._restore_environment()
            FunctionsHost._occupant = None

    @property
    def ended(self) -> str:
        """Why the host has ended by itself; empty while it runs."""
        return self._end_reason

    async def failed(self) -> str:
        """Wait until the host has to end, as the real host does when storage refuses connections or
        when the worker keeps dying.

        Returns the reason. The caller stops the host.
        """
        await self._ended.wait()
        return self._end_reason

    async def kill_worker(self) -> None:
        """End all running invocations, as a crash of the worker's process does.

        The app stays loaded. The third death in a row ends the host, as it ends the real one.
        """
        assert self._services is not None, "the host is not started"
        log_event(logging.ERROR, "worker_died", "the worker died")
        await self._services.invoker.kill_worker()
        if self._worker_deaths.end_the_host(self._services.now()):
            self._end(f"the worker has died {DEATHS_MAX} times in a row")

    async def invoke(self, name: str, text: str = "") -> Outcome:
        """Run a function manually and wait for its end. HTTP functions are not supported."""
        assert self._services is not None, "the host is not started"
        for function in self._functions:
            if function.name == name:
                invocation = manual_invocation(function, text)
                return await self._services.invoker.invoke(function, invocation)
        raise KeyError(f"the app has no function {name}")

    async def _start(self) -> None:
        settings = read_app_settings(self._app_dir, {**os.environ, **self._given_settings})
        config = self._given_config or read_host_json(self._app_dir, settings.values)
        if config.ignored:
            names = ", ".join(config.ignored)
            log_event(logging.WARNING, "host_json_ignored", f"host.json: no effect here: {names}")
        self._environment = dict(os.environ)
        os.environ.update({**settings.values, APP_FOLDER: str(self._app_dir)})
        functions = read_functions(await self._load(), settings)
        self._functions = tuple(with_default_retry(each, config.retry) for each in functions)
        services = self._create_services(settings, config)
        self._services = services
        self._http = HttpServer(services, self._functions)
        for each in [*create_listeners(services, self._functions, self._factories), self._http]:
            self._started.append(each)
            await each.start()

    async def _load(self) -> Sequence[Any]:
        """The metadata of the functions. An app that cannot be imported has none, and is logged."""
        try:
            return await self._worker.load()
        except AppNotLoaded as error:
            self._load_error = str(error)
            log_event(logging.ERROR, "indexing_failed", f"{error}; 0 functions found")
            return ()

    def _create_services(self, settings: AppSettings, config: HostConfig) -> Services:
        invoker = Invoker(self._worker, config.function_timeout_seconds)
        path = self._options.keys_file
        keys = read_keys(path) if path else new_keys()
        return Services(
            settings,
            config,
            self._options,
            invoker,
            self._queues,
            keys,
            self._blobs,
            host_id(settings.values, self._app_dir),
            end=self._end,
            identities=self._identities,
        )

    def _end(self, reason: str) -> None:
        if self._ended.is_set():  # several listeners notice the same outage
            return
        log_event(logging.ERROR, "host_ended", f"the host ends: {reason}")
        self._end_reason = reason
        self._ended.set()

    async def _drain(
        self, stops: Sequence[Awaitable[None]], drain_seconds: float, closing_seconds: float
    ) -> None:
        tasks = [asyncio.ensure_future(each) for each in stops]
        _, pending = await asyncio.wait(tasks, timeout=drain_seconds)
        if pending:
            log_event(
                logging.WARNING,
                "drain_cut_short",
                "some invocations did not end in time and are cancelled",
            )
        if self._services is not None:
            await self._services.invoker.interrupt()
        _, pending = await asyncio.wait(tasks, timeout=closing_seconds)
        for task in pending:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                log_event(logging.ERROR, "listener_failed", f"a listener failed: {outcome!r}")

    def _restore_environment(self) -> None:
        if self._environment is not None:
            os.environ.clear()
            os.environ.update(self._environment)
            self._environment = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        """After an error in the body, running invocations are cancelled."""
        await self.stop(drain=kind is None)
