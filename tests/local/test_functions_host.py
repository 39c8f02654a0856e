"""The local functions host keeps the promises of the real host: HTTP, keys, start, stop and log."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
import signal
import stat
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import aiohttp
import pytest
from azure.core.exceptions import ResourceNotFoundError
from azure.storage.queue.aio import QueueClient, QueueServiceClient

from local.azurite import Azurite
from local.functions_host import (
    FunctionsHost,
    HostConfig,
    HostOptions,
    HostStartFailed,
    QueueOptions,
)
from local.functions_host.functions import Level
from local.functions_host.host_blobs import HOST_ID
from local.functions_host.host_json import read_host_json
from local.functions_host.keys import Keys, read_keys
from local.functions_host.logs import arrives
from local.functions_host.request_guard import refusal
from tests.local.polling import until

SAMPLE_APP = Path(__file__).parent / "sample_app"
ROOT = Path(__file__).parents[2]
SECONDS_MAX = 40.0
SAMPLE_CONFIG = read_host_json(SAMPLE_APP)
DISABLED = ("bury", "stubborn")


@dataclass(frozen=True, slots=True)
class Sample:
    """A running sample app with its host, its queues and a client for its HTTP functions."""

    host: FunctionsHost
    work: QueueClient
    poison: QueueClient
    http: aiohttp.ClientSession
    app: ModuleType

    async def give(self, instructions: dict[str, Any]) -> str:
        """Send instructions to the work queue as base64. Return the raw text of the message."""
        raw = encoded(instructions)
        await self.work.send_message(raw)
        return raw

    @property
    def journal(self) -> list[dict[str, Any]]:
        """What the app's functions recorded."""
        return list(self.app.journal)

    @property
    def running(self) -> dict[str, int]:
        return dict(self.app.running)

    async def length(self, queue: QueueClient) -> int:
        """The number of messages in a queue, including invisible ones."""
        try:
            return (await queue.get_queue_properties()).approximate_message_count or 0
        except ResourceNotFoundError:
            return 0

    async def wait_for_length(self, queue: QueueClient, expected: int) -> None:
        async with asyncio.timeout(SECONDS_MAX):
            while await self.length(queue) != expected:  # noqa: ASYNC110  a queue has to be polled
                await asyncio.sleep(0.02)


def encoded(instructions: dict[str, Any]) -> str:
    return base64.b64encode(json.dumps(instructions).encode()).decode()


RunSample = Callable[..., Any]


@pytest.fixture
def run_sample(azurite: Azurite) -> RunSample:
    """Starts the sample app in this process, with its own queues."""

    @asynccontextmanager
    async def run(
        queues: QueueOptions = SAMPLE_CONFIG.queues,
        options: HostOptions | None = None,
        function_timeout_seconds: float | None = None,
        orders: Sequence[dict[str, Any]] = (),
        **settings: str,
    ) -> AsyncIterator[Sample]:
        """`orders` are in the work queue before the host starts."""
        name = f"work-{uuid.uuid4().hex[:12]}"
        config = HostConfig(queues, function_timeout_seconds=function_timeout_seconds)
        service = QueueServiceClient.from_connection_string(azurite.connection_string)
        async with service:
            work, poison = (service.get_queue_client(name + end) for end in ("", "-poison"))
            await work.create_queue()
            for order in orders:
                await work.send_message(encoded(order))
            host = FunctionsHost(
                SAMPLE_APP,
                settings=sample_settings(azurite, name) | settings,
                config=config,
                options=options,
            )
            async with host, client(host.url, host.keys) as http:
                yield Sample(host, work, poison, http, sys.modules["function_app"])

    return run


def client(url: str, keys: Keys) -> aiohttp.ClientSession:
    """A client with the master key."""
    return aiohttp.ClientSession(url, headers={"x-functions-key": keys.master})


def sample_settings(azurite: Azurite, name: str) -> dict[str, str]:
    disabled = {f"AzureWebJobs.{each}.Disabled": "true" for each in DISABLED}
    storage = azurite.connection_string
    return {"AzureWebJobsStorage": storage, "WorkQueue": name, HOST_ID: name, **disabled}


class TestHttpTrigger:
    async def test_requests_reach_their_function_and_answers_are_passed_on_completely(
        self, run_sample: RunSample
    ) -> None:
        async with run_sample() as sample:
            answer = await sample.http.post(
                "/api/ITEMS/7/a%2Fb?x=1&x=2&y=ü", data="body", headers={"X-Asked": "this"}
            )
            seen = await answer.json()
            for method, path, status in (
                ("GET", "/api/items/7", 201),
                ("GET", "/api/items", 404),
                ("PUT", "/api/items/7", 404),
                ("GET", "/api/items/special", 200),
                ("GET", "/items/7", 404),
                ("GET", "/api/broken", 500),
            ):
                async with sample.http.request(method, path) as other:
                    assert other.status == status, path
        assert answer.status == 201
        assert answer.headers["X-Answered"] == "yes"
        assert answer.headers["Content-Type"] == "application/json"
        assert answer.cookies["taste"].value == "sweet"
        assert seen == {
            "method": "POST",
            "route": {"id": "7", "kind": "a/b"},
            "query": {"x": "1,2", "y": "ü"},
            "body": "body",
            "header": "this",
        }

    async def test_a_time_out_ends_other_invocations_which_stay_stuck_until_their_own_limit(
        self, run_sample: RunSample, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with run_sample(function_timeout_seconds=2.0) as sample:
            hanging = asyncio.create_task(sample.http.get("/api/sleep/60"))
            await until(lambda: sample.running["now"] == 1, SECONDS_MAX)
            await asyncio.sleep(0.5)
            other = asyncio.create_task(sample.http.get("/api/sleep/60"))
            await until(lambda: sample.running["now"] == 2, SECONDS_MAX)
            assert (await hanging).status == 500
            assert (sample.running["now"], other.done()) == (0, False), "its end is not noticed yet"
            assert (await other).status == 500
        assert caplog.messages.count("sleep failed: exceeded the functionTimeout of 2 s") == 2

    async def test_the_admin_endpoint_runs_a_function_and_refuses_what_it_does_not_know(
        self, run_sample: RunSample
    ) -> None:
        async with run_sample() as sample:
            for name, body, kind, status in (
                ("work", '{"input": "by hand"}', "application/json", 202),
                ("unknown", "{}", "application/json", 404),
                ("item", "{}", "application/json", 400),
                ("work", "[]", "application/json", 400),
                ("work", "{", "application/json", 400),
                ("work", "{}", "text/plain", 415),
            ):
                headers, path = {"content-type": kind}, f"/admin/functions/{name}"
                async with sample.http.post(path, data=body, headers=headers) as answer:
                    assert answer.status == status, (name, body)
            await until(lambda: "work" in sample.host.counts, SECONDS_MAX)
            assert [each["body"] for each in sample.journal] == ["by hand"]


KEYS = Keys("m" * 32)


@pytest.mark.parametrize(
    ("level", "open_to"),
    [
        (Level.ANONYMOUS, {"none", "another", "own", "host", "master", "unusual"}),
        (Level.FUNCTION, {"own", "host", "master"}),
        (Level.ADMIN, {"master"}),
    ],
)
def test_each_auth_level_accepts_the_keys_that_the_real_host_accepts(
    level: Level, open_to: set[str]
) -> None:
    given = {
        "none": "",
        "another": KEYS.function("another"),
        "own": KEYS.function("mine"),
        "host": KEYS.host,
        "master": KEYS.master,
        "unusual": "\udcff\0ü",
    }
    assert len(set(given.values())) == len(given)
    assert not any(key and key in repr(KEYS) for key in given.values())
    assert {kind for kind, key in given.items() if KEYS.opens(level, "mine", key)} == open_to


def test_keys_are_kept_in_a_file_that_only_its_owner_can_read(tmp_path: Path) -> None:
    path = tmp_path / "state" / "master_key"
    first = read_keys(path)
    assert read_keys(path) == first
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    path.write_text("short")
    with pytest.raises(HostStartFailed, match=r"master_key does not hold a key .* Delete the file"):
        read_keys(path)


def own(host: str = "127.0.0.1:7071", **more: str) -> dict[str, str]:
    return {"Host": host, **{name.replace("_", "-"): value for name, value in more.items()}}


@pytest.mark.parametrize(
    ("headers", "refused"),
    [
        *[(own(host), "") for host in ("127.0.0.1:7071", "LOCALHOST:7071", "[::1]:7071")],
        (own(Origin="http://127.0.0.1:7071"), ""),
        (own(Origin="null", Sec_Fetch_Site="same-origin"), ""),
        *[(own(host), "Host") for host in ("", "evil.example:7071", "127.0.0.1", "127.0.0.1:80")],
        (own(Origin="http://evil.example:7071"), "Origin"),
        (own(Origin="http://127.0.0.1:3000"), "Origin"),
        (own(Origin="https://127.0.0.1:7071"), "Origin"),
        (own(Origin="http://localhost:7071"), "Origin"),  # to a browser, a different site
        (own(Origin=""), "Origin"),
        (own(Origin="null"), "Origin"),
        (own(Origin="null", Sec_Fetch_Site="same-site"), "Origin"),
    ],
)
def test_only_requests_to_the_hosts_own_address_and_from_its_own_site_are_accepted(
    headers: Mapping[str, str], refused: str
) -> None:
    assert refusal(headers, 7071).partition(" ")[0] == refused


async def test_no_endpoint_of_the_host_answers_another_site(run_sample: RunSample) -> None:
    async with run_sample() as sample:
        headers = {"Origin": "https://evil.example", "content-type": "application/json"}
        for method, path in (
            ("POST", "/admin/functions/item"),
            ("POST", "/api/items/7"),
            ("GET", "/api/nothing"),
        ):
            async with sample.http.request(method, path, headers=headers, data="{}") as answer:
                assert answer.status == 403, path
                assert "Access-Control-Allow-Origin" not in answer.headers
        assert sample.host.counts == {}


class TestStart:
    async def test_a_timer_runs_at_startup_and_its_retries_see_the_retry_count(
        self, run_sample: RunSample
    ) -> None:
        async with run_sample(**{"AzureWebJobs.stubborn.Disabled": "false"}) as sample:
            await until(lambda: len(sample.journal) == 3, SECONDS_MAX)
            assert sample.journal == [{"stubborn": nr} for nr in range(3)]

    async def test_the_app_is_imported_again_and_the_process_is_restored_afterwards(
        self, run_sample: RunSample, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        imported_before = ModuleType("function_app")
        imported_before.__file__ = str(SAMPLE_APP / "function_app.py")
        monkeypatch.setitem(sys.modules, "function_app", imported_before)
        before = imported_before, list(sys.path)
        async with run_sample() as sample:
            assert sample.app is not imported_before
            assert Path(str(sample.app.__file__)).parent == SAMPLE_APP
            with pytest.raises(HostStartFailed, match="already runs in this process"):
                await FunctionsHost(SAMPLE_APP).start()
        assert (sys.modules.get("function_app"), list(sys.path)) == before


class TestStop:
    async def test_stopping_takes_a_limited_time(
        self, run_sample: RunSample, caplog: pytest.LogCaptureFixture
    ) -> None:
        """However an invocation was started. It could open clients again that nothing closes."""
        async with run_sample(options=HostOptions(drain_seconds=0.1)) as sample:
            order = {"seconds": 60}
            await sample.give(order)
            by_hand = {"input": json.dumps(order)}
            await sample.http.post("/admin/functions/work", json=by_hand)
            by_http = asyncio.create_task(sample.http.get("/api/sleep/60"))
            await until(lambda: sample.running["now"] == 3, SECONDS_MAX)
            await sample.host.stop()
            assert sample.running["now"] == 0
            with suppress(aiohttp.ClientError):
                await by_http
        assert "some invocations did not end in time and are cancelled" in caplog.messages


class Arriving(logging.Handler):
    """Records the texts of the lines that the real host would keep."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.addFilter(arrives)

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


async def test_lines_of_the_app_outside_an_invocation_do_not_arrive(run_sample: RunSample) -> None:
    log = Arriving()
    logging.getLogger().addHandler(log)
    try:
        async with run_sample() as sample:
            for path in ("/api/talk", "/api/talk-synchronously"):
                async with sample.http.post(path, data="") as answer:
                    assert answer.status == 200
            await until(lambda: {"talked": True} in sample.journal, SECONDS_MAX)
            logging.getLogger("functions_host").warning("in the host")
    finally:
        logging.getLogger().removeHandler(log)
    said = [text for text in log.texts if text.startswith(("in ", "during", "after"))]
    assert said == ["in the invocation", "in a task", "in a synchronous function", "in the host"]


@dataclass
class Started:
    """`python -m local.functions_host`, with the client of its HTTP functions."""

    process: subprocess.Popen[str]
    folder: Path

    def http(self) -> aiohttp.ClientSession:
        assert self.process.stdout is not None
        url = next(line.split()[4] for line in self.process.stdout if "listening on" in line)
        return client(url, read_keys(self.folder / "master_key"))

    async def ended(self) -> tuple[int, str]:
        _, errors = await asyncio.to_thread(self.process.communicate)
        return self.process.returncode, errors

    @property
    def logged(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "host.log").read_text().splitlines()]


@pytest.fixture
def command_line(azurite: Azurite, tmp_path: Path) -> Iterator[Callable[..., Started]]:
    """Processes that still run at the end are killed."""
    processes: list[subprocess.Popen[str]] = []

    def start(app: Path = SAMPLE_APP, *arguments: str) -> Started:
        command = [sys.executable, "-m", "local.functions_host", "--app", str(app), "--port", "0"]
        command += ["--keys", str(tmp_path / "master_key"), "--log", str(tmp_path / "host.log")]
        process = subprocess.Popen(
            [*command, *arguments],
            cwd=ROOT,
            env={"PATH": "", **sample_settings(azurite, f"work-{uuid.uuid4().hex[:12]}")},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return Started(process, tmp_path)

    yield start
    for process in processes:
        process.kill()
        process.communicate()


async def asleep(http: aiohttp.ClientSession) -> None:
    async with asyncio.timeout(SECONDS_MAX):
        while "asleep" not in await (await http.get("/api/journal")).text():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


class TestCommandLine:
    async def test_a_failure_is_logged_as_one_structured_line(
        self, command_line: Callable[..., Started]
    ) -> None:
        """A signal then stops the host after the running invocation."""
        started = command_line()
        async with started.http() as http:
            assert (await http.get("/api/broken")).status == 500
            request = asyncio.create_task(http.get("/api/sleep/0.5"))
            await asleep(http)
            started.process.send_signal(signal.SIGTERM)
            assert await (await request).text() == "slept"
        assert await started.ended() == (0, "")
        (failed,) = [each for each in started.logged if each["level"] == "ERROR"]
        assert (failed["action"], failed["function"]) == ("invocation_failed", "broken")
        assert "broken on purpose" in failed["traceback"]

    async def test_an_app_that_cannot_be_imported_leaves_a_host_without_functions(
        self, command_line: Callable[..., Started], tmp_path: Path
    ) -> None:
        (tmp_path / "function_app.py").write_text("import json\nimport no_such_module\n")
        (tmp_path / "host.json").write_text('{"version": "2.0", "watchDirectories": ["x"]}')
        started = command_line(tmp_path)
        async with started.http() as http, http.get("/api/dashboard") as answer:
            assert answer.status == 404
        started.process.send_signal(signal.SIGTERM)
        assert await started.ended() == (0, "")
        assert [(each["action"], each["message"]) for each in started.logged] == [
            ("host_json_ignored", "host.json: no effect here: watchDirectories"),
            (
                "indexing_failed",
                "function_app.py cannot be loaded: ModuleNotFoundError: No module named "
                "'no_such_module' (function_app.py, line 2); 0 functions found",
            ),
        ]
