"""The local functions host with real queues keeps the promises of the real host."""

import asyncio
import base64
import json
import logging
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
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
    InvocationCounts,
    QueueOptions,
)
from local.functions_host.host_blobs import HOST_ID
from local.functions_host.host_json import read_host_json
from local.functions_host.keys import Keys, read_keys
from local.functions_host.outputs import Outputs
from local.functions_host.storage_queues import MessageEncoding

SAMPLE_APP = Path(__file__).parent / "sample_app"
ROOT = Path(__file__).parents[2]
DEADLINE_SECONDS = 40.0
NEVER = "0 0 0 1 1 *"
SAMPLE_CONFIG = read_host_json(SAMPLE_APP)


@dataclass(frozen=True, slots=True)
class Sample:
    """A running sample app with its host, its queues and a client for its HTTP functions."""

    host: FunctionsHost
    work: QueueClient
    poison: QueueClient
    output: QueueClient
    http: aiohttp.ClientSession

    async def give(self, body: str | dict[str, Any]) -> str:
        """Send instructions to the work queue as base64. Return the raw text of the message."""
        raw = encoded(body)
        await self.work.send_message(raw)
        return raw

    async def journal(self) -> list[dict[str, Any]]:
        """What the app's functions recorded."""
        return list((await self._read_journal())["journal"])

    async def most_running(self) -> int:
        """The highest number of `work` invocations that ran at once."""
        return int((await self._read_journal())["most"])

    async def _read_journal(self) -> dict[str, Any]:
        async with self.http.get("/api/journal") as response:
            return dict(await response.json(content_type=None))


def encoded(body: str | dict[str, Any]) -> str:
    """Instructions as the text of a queue message."""
    text = body if isinstance(body, str) else json.dumps(body)
    return base64.b64encode(text.encode()).decode()


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
        app_settings = sample_settings(azurite, name) | settings
        config = HostConfig(queues, function_timeout_seconds=function_timeout_seconds)
        service = QueueServiceClient.from_connection_string(azurite.connection_string)
        async with service:
            clients = [service.get_queue_client(name + end) for end in ("", "-poison", "-out")]
            await clients[0].create_queue()
            for order in orders:
                await clients[0].send_message(encoded(order))
            host = FunctionsHost(SAMPLE_APP, settings=app_settings, config=config, options=options)
            async with host, client(host.url, host.keys) as http:
                yield Sample(host, clients[0], clients[1], clients[2], http)

    return run


def client(url: str, keys: Keys) -> aiohttp.ClientSession:
    """A client with the master key."""
    return aiohttp.ClientSession(url, headers={"x-functions-key": keys.master})


def sample_settings(azurite: Azurite, name: str) -> dict[str, str]:
    return {
        "AzureWebJobsStorage": azurite.connection_string,
        "WorkQueue": name,
        "OutputQueue": f"{name}-out",
        HOST_ID: name,
        "TickSchedule": NEVER,
        "AzureWebJobs.tick.Disabled": "true",
        "AzureWebJobs.bury.Disabled": "true",
        "AzureWebJobs.stubborn.Disabled": "true",
    }


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Poll until `holds` returns True. Fail at the deadline."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not await holds():
        assert time.monotonic() < deadline, "the condition was not met in time"
        await asyncio.sleep(0.02)


async def length(queue: QueueClient) -> int:
    """The number of messages in a queue, including invisible ones."""
    try:
        return (await queue.get_queue_properties()).approximate_message_count or 0
    except ResourceNotFoundError:
        return 0


async def wait_for_length(queue: QueueClient, expected: int) -> None:
    async def holds() -> bool:
        return await length(queue) == expected

    await until(holds)


async def visible_texts(queue: QueueClient) -> list[str]:
    return [message.content for message in await queue.peek_messages(32)]


async def work_entries(sample: Sample) -> list[dict[str, Any]]:
    return [each for each in await sample.journal() if "body" in each]


class TestQueueTrigger:
    async def test_a_successful_function_deletes_its_message(self, run_sample: RunSample) -> None:
        async with run_sample() as sample:
            await sample.give("hello")
            await wait_for_length(sample.work, 0)
            entries = await work_entries(sample)
        assert [(each["body"], each["dequeue_count"]) for each in entries] == [("hello", 1)]
        assert sample.host.counts["work"].failures == 0

    async def test_a_failing_message_is_retried_and_then_moved_unchanged_to_the_poison_queue(
        self, run_sample: RunSample
    ) -> None:
        async with run_sample() as sample:
            raw = await sample.give({"fail": True, "text": "grüße"})
            await wait_for_length(sample.poison, 1)
            await wait_for_length(sample.work, 0)
            entries = await work_entries(sample)
            assert await visible_texts(sample.poison) == [raw]
        assert [each["dequeue_count"] for each in entries] == [1, 2, 3]
        assert len({each["id"] for each in entries}) == 1
        assert sample.host.counts["work"].failures == 3

    async def test_a_message_that_is_not_base64_goes_to_the_poison_queue_without_an_invocation(
        self, run_sample: RunSample
    ) -> None:
        async with run_sample() as sample:
            await sample.work.send_message("not base64!")
            await wait_for_length(sample.poison, 1)
            await wait_for_length(sample.work, 0)
            assert await visible_texts(sample.poison) == ["not base64!"]
        assert "work" not in sample.host.counts

    async def test_without_encoding_message_texts_are_unchanged(
        self, run_sample: RunSample
    ) -> None:
        plain = replace(SAMPLE_CONFIG.queues, message_encoding=MessageEncoding.NONE)
        async with run_sample(plain) as sample:
            await sample.work.send_message(json.dumps({"emit": ["<ä>"]}))
            await wait_for_length(sample.output, 1)
            assert await visible_texts(sample.output) == ["<ä>"]

    async def test_one_failing_message_does_not_stop_the_others(
        self, run_sample: RunSample
    ) -> None:
        async with run_sample() as sample:
            for order in ({"fail": True}, *({"nr": nr} for nr in range(20)), {"fail": True}):
                await sample.give(order)
            await wait_for_length(sample.poison, 2)
            await wait_for_length(sample.work, 0)
        counts = sample.host.counts["work"]
        assert counts.invocations - counts.failures == 20

    async def test_concurrency_stays_within_batch_size_and_threshold(
        self, run_sample: RunSample
    ) -> None:
        small = replace(SAMPLE_CONFIG.queues, batch_size=4, new_batch_threshold=2)
        async with run_sample(small, orders=[{"seconds": 0.3}] * 20) as sample:
            await wait_for_length(sample.work, 0)
            assert 4 <= await sample.most_running() <= 6

    async def test_the_lease_is_renewed_while_the_function_runs(
        self, run_sample: RunSample
    ) -> None:
        async with run_sample(options=HostOptions(lease_seconds=3)) as sample:
            await sample.give({"seconds": 3.5})
            await wait_for_length(sample.work, 0)
            entries = await work_entries(sample)
        assert [each["dequeue_count"] for each in entries] == [1]

    async def test_a_poison_queue_has_no_poison_queue(self, run_sample: RunSample) -> None:
        settings = {"AzureWebJobs.bury.Disabled": "false"}
        async with run_sample(**settings) as sample:
            await sample.poison.create_queue()
            await sample.poison.send_message(base64.b64encode(b"bad").decode())
            await sample.poison.send_message("not base64!")

            async def both_are_taken() -> bool:
                return not await visible_texts(sample.poison)

            await until(both_are_taken)
            await until(lambda: _is_true("bury" in sample.host.counts))
            assert await length(sample.poison) == 2
        assert sample.host.counts["bury"].invocations == 1

    async def test_an_output_list_becomes_one_message_for_each_element(
        self, run_sample: RunSample
    ) -> None:
        async with run_sample() as sample:
            await sample.give({"emit": ["a", "b", "c"]})
            await wait_for_length(sample.output, 3)
            sent = [base64.b64decode(text) for text in await visible_texts(sample.output)]
        assert sent == [b"a", b"b", b"c"]

    async def test_a_failing_output_fails_the_invocation(self, run_sample: RunSample) -> None:
        async with run_sample(OutputQueue="Not_A_Queue_Name") as sample:
            await sample.give({"emit": ["a"]})
            await wait_for_length(sample.poison, 1)
        assert sample.host.counts["work"].failures == 3


async def _is_true(value: bool) -> bool:
    return value


class TestTimerTrigger:
    async def test_a_timer_never_fires_concurrently_and_runs_once_for_all_overlapped_occurrences(
        self, run_sample: RunSample
    ) -> None:
        settings = {"TickSchedule": "* * * * * *", "AzureWebJobs.tick.Disabled": "false"}
        async with run_sample(**settings) as sample:

            async def ticked() -> bool:
                return len(await sample.journal()) >= 2

            await until(ticked)
            ticks = await sample.journal()
        started, ended = (
            [datetime.fromisoformat(each[key]) for each in ticks] for key in ("started", "ended")
        )
        # The first run is longer than the interval. The missed occurrences become one run, which
        # is not past due: only a run at the start of a host is.
        assert ended[0] <= started[1]
        assert [(each["status"], each["past_due"]) for each in ticks] == [({}, False)] * 2

    async def test_a_timer_runs_at_startup_and_its_retries_see_the_retry_count(
        self, run_sample: RunSample
    ) -> None:
        settings = {"AzureWebJobs.stubborn.Disabled": "false"}
        async with run_sample(**settings) as sample:

            async def ended() -> bool:
                return len(await sample.journal()) == 3

            await until(ended)
            assert await sample.journal() == [{"stubborn": nr} for nr in range(3)]


class TestHttpTrigger:
    async def test_requests_and_answers_are_passed_on_completely(
        self, run_sample: RunSample
    ) -> None:
        async with run_sample() as sample:
            answer = await sample.http.post(
                "/api/ITEMS/7/a%2Fb?x=1&x=2&y=ü", data="body", headers={"X-Asked": "this"}
            )
            seen = await answer.json()
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

    @pytest.mark.parametrize(
        ("method", "path", "status"),
        [
            ("GET", "/api/items/7", 201),
            ("GET", "/api/items", 404),
            ("PUT", "/api/items/7", 404),
            ("GET", "/api/items/special", 200),
            ("GET", "/items/7", 404),
            ("GET", "/api/broken", 500),
        ],
    )
    async def test_routes_and_methods_select_the_function(
        self, run_sample: RunSample, method: str, path: str, status: int
    ) -> None:
        async with run_sample() as sample, sample.http.request(method, path) as answer:
            assert answer.status == status

    async def test_a_body_that_is_sent_in_chunks_arrives_empty(self, run_sample: RunSample) -> None:
        async def chunks() -> AsyncIterator[bytes]:
            yield b"body"

        async with run_sample() as sample:
            answer = await sample.http.post("/api/items/7", data=chunks())
            seen = await answer.json()
        assert (answer.status, seen["body"]) == (201, "")

    async def test_an_invocation_that_exceeds_the_function_timeout_fails(
        self, run_sample: RunSample, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with run_sample(function_timeout_seconds=0.1) as sample:
            answer = await sample.http.get("/api/sleep/5")
        assert answer.status == 500
        assert "sleep failed: exceeded the functionTimeout of 0.1 s" in caplog.messages

    async def test_a_time_out_ends_other_invocations_which_stay_stuck_until_their_own_limit(
        self, run_sample: RunSample
    ) -> None:
        async with run_sample(function_timeout_seconds=4.0) as sample:
            running = sys.modules["function_app"].running
            hanging = asyncio.create_task(sample.http.get("/api/sleep/60"))
            await until(lambda: _is_true(running["now"] == 1))
            await asyncio.sleep(1)
            began = time.monotonic()
            other = asyncio.create_task(sample.http.get("/api/sleep/60"))
            await until(lambda: _is_true(running["now"] == 2))
            assert (await hanging).status == 500
            assert (running["now"], other.done()) == (0, False), "the host has not noticed its end"
            assert (await other).status == 500
        assert time.monotonic() - began >= 4.0

    async def test_the_function_timeout_does_not_limit_an_output_binding(
        self, run_sample: RunSample, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write = Outputs.write

        async def slowly(self: Outputs, *of: Any) -> None:
            await asyncio.sleep(1.2)
            await write(self, *of)

        monkeypatch.setattr(Outputs, "write", slowly)
        async with run_sample(function_timeout_seconds=1.0) as sample:
            await sample.give({"emit": ["a"]})
            await wait_for_length(sample.output, 1)


class TestAdmin:
    async def test_the_admin_endpoint_runs_a_function(self, run_sample: RunSample) -> None:
        async with run_sample() as sample:
            path = "/admin/functions/work"
            async with sample.http.post(path, json={"input": "by hand"}) as answer:
                assert answer.status == 202
            await until(lambda: _is_true("work" in sample.host.counts))
            assert [each["body"] for each in await work_entries(sample)] == ["by hand"]

    @pytest.mark.parametrize(
        ("name", "body", "status"),
        [("unknown", "{}", 404), ("item", "{}", 400), ("work", "[]", 400), ("work", "{", 400)],
    )
    async def test_the_admin_endpoint_refuses_unknown_functions_and_invalid_input(
        self, run_sample: RunSample, name: str, body: str, status: int
    ) -> None:
        async with run_sample() as sample:
            answer = await sample.http.post(
                f"/admin/functions/{name}", data=body, headers={"content-type": "application/json"}
            )
        assert answer.status == status


class TestStart:
    async def test_the_error_for_a_missing_setting_names_function_and_setting(
        self, azurite: Azurite
    ) -> None:
        settings = sample_settings(azurite, "work")
        del settings["WorkQueue"]
        expected = r"function work: setting WorkQueue is missing \(needed by '%WorkQueue%'\)"
        with pytest.raises(HostStartFailed, match=expected):
            await FunctionsHost(SAMPLE_APP, settings=settings).start()

    async def test_the_error_for_a_missing_connection_names_function_and_setting(
        self, azurite: Azurite
    ) -> None:
        settings = sample_settings(azurite, "work") | {"AzureWebJobsStorage": ""}
        with pytest.raises(HostStartFailed, match="work: setting AzureWebJobsStorage is missing"):
            await FunctionsHost(SAMPLE_APP, settings=settings).start()

    async def test_a_disabled_function_does_not_run(self, run_sample: RunSample) -> None:
        settings = {"AzureWebJobs.work.Disabled": "true"}
        async with run_sample(**settings) as sample:
            assert "work" not in {each.name for each in sample.host.functions}

    async def test_a_function_with_an_unsupported_trigger_is_indexed_and_reported(
        self, run_sample: RunSample, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.WARNING):
            async with run_sample() as sample:
                assert "listen" in {each.name for each in sample.host.functions}
        expected = "listen is indexed but does not run: the local host does not support blobtrigger"
        assert expected in caplog.messages

    async def test_the_app_is_imported_again_and_the_process_is_restored_afterwards(
        self, run_sample: RunSample, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        imported_before = ModuleType("function_app")
        imported_before.__file__ = str(SAMPLE_APP / "function_app.py")
        monkeypatch.setitem(sys.modules, "function_app", imported_before)
        before = imported_before, list(sys.path)
        async with run_sample():
            assert sys.modules["function_app"] is not imported_before
            assert Path(str(sys.modules["function_app"].__file__)).parent == SAMPLE_APP
            with pytest.raises(HostStartFailed, match="already runs in this process"):
                await FunctionsHost(SAMPLE_APP).start()
        assert (sys.modules.get("function_app"), list(sys.path)) == before


async def _by_queue(sample: Sample) -> None:
    await sample.give({"seconds": 60})


async def _by_http(sample: Sample) -> None:
    with suppress(aiohttp.ClientError):
        await sample.http.get("/api/sleep/60")


async def _by_hand(sample: Sample) -> None:
    order = {"input": json.dumps({"seconds": 60})}
    async with sample.http.post("/admin/functions/work", json=order) as answer:
        assert answer.status == 202


class TestStop:
    async def test_stopping_waits_for_running_invocations(self, run_sample: RunSample) -> None:
        async with run_sample() as sample:
            await sample.give({"seconds": 0.6})
            await until(lambda: _has_entries(sample))
            await sample.host.stop()
            assert await length(sample.work) == 0
        assert sample.host.counts["work"] == InvocationCounts(invocations=1)

    async def test_stopping_takes_a_limited_time(
        self, run_sample: RunSample, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with run_sample(options=HostOptions(drain_seconds=0.1)) as sample:
            await sample.give({"seconds": 60})
            await until(lambda: _has_entries(sample))
        assert "some invocations did not end in time and are cancelled" in caplog.messages

    @pytest.mark.timeout(120)
    async def test_after_an_error_running_invocations_are_cancelled_at_once(
        self, run_sample: RunSample
    ) -> None:
        async def failing() -> None:
            async with run_sample(options=HostOptions(drain_seconds=3600)) as sample:
                await sample.give({"seconds": 3600})
                await until(lambda: _has_entries(sample))
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await failing()

    @pytest.mark.parametrize("begin", [_by_queue, _by_http, _by_hand])
    async def test_no_invocation_runs_on_after_the_stop_however_it_was_started(
        self, run_sample: RunSample, begin: Callable[[Sample], Coroutine[Any, Any, None]]
    ) -> None:
        """Otherwise the invocation could open clients again that nothing closes."""
        one_at_a_time = replace(SAMPLE_CONFIG.queues, batch_size=1, new_batch_threshold=0)
        async with run_sample(one_at_a_time, HostOptions(drain_seconds=0.1)) as sample:
            running = sys.modules["function_app"].running
            beginning = asyncio.create_task(begin(sample))
            await until(lambda: _is_true(running["now"] > 0))
            await sample.host.stop()
            assert running["now"] == 0
            await asyncio.wait([beginning])

    async def test_an_invocation_that_begins_after_the_stop_does_not_run(
        self, run_sample: RunSample
    ) -> None:
        async with run_sample() as sample:
            journal = sys.modules["function_app"].journal
            await sample.host.stop()
            beginning = asyncio.create_task(sample.host.invoke("work", "late"))
            await asyncio.wait([beginning])
            assert (beginning.cancelled(), journal) == (True, [])


async def _has_entries(sample: Sample) -> bool:
    return bool(await work_entries(sample))


@pytest.fixture
def command_line(azurite: Azurite, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Starts `python -m local.functions_host`. Processes that still run at the end are killed."""
    processes: list[subprocess.Popen[str]] = []

    def start(app: Path = SAMPLE_APP, *arguments: str) -> subprocess.Popen[str]:
        environment = sample_settings(azurite, f"work-{uuid.uuid4().hex[:12]}")
        command = ["-m", "local.functions_host", "--app", str(app), "--port", "0"]
        command += ["--keys", str(tmp_path / "master_key")]
        process = subprocess.Popen(
            [sys.executable, *command, "--log", str(tmp_path / "host.log"), *arguments],
            cwd=ROOT,
            env={"PATH": "", **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def read_url(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if "listening on" in line:
            return line.split()[4]
    raise AssertionError("the host did not listen")


async def _is_asleep(http: aiohttp.ClientSession) -> bool:
    async with http.get("/api/journal") as answer:
        return "asleep" in await answer.text()


class TestCommandLine:
    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    async def test_a_signal_stops_the_host_after_the_running_invocation(
        self, command_line: Callable[..., Any], tmp_path: Path, number: signal.Signals
    ) -> None:
        process = command_line()
        async with client(read_url(process), read_keys(tmp_path / "master_key")) as http:
            request = asyncio.create_task(http.get("/api/sleep/0.5"))
            await until(lambda: _is_asleep(http))
            process.send_signal(number)
            answer = await request
            assert (answer.status, await answer.text()) == (200, "slept")
        _, errors = await asyncio.to_thread(process.communicate)
        assert (process.returncode, errors) == (0, "")

    async def test_a_function_that_hangs_does_not_prevent_the_host_from_stopping(
        self, command_line: Callable[..., Any], tmp_path: Path
    ) -> None:
        process = command_line(SAMPLE_APP, "--drain-seconds", "0.2")
        async with client(read_url(process), read_keys(tmp_path / "master_key")) as http:
            request = asyncio.create_task(http.get("/api/block/60"))
            await until(lambda: _is_asleep(http))
            process.send_signal(signal.SIGTERM)
            with pytest.raises(aiohttp.ClientError):
                await request
        _, errors = await asyncio.to_thread(process.communicate)
        assert (process.returncode, errors) == (0, "")

    async def test_an_app_that_cannot_be_imported_leaves_a_host_without_functions(
        self, command_line: Callable[..., Any], tmp_path: Path
    ) -> None:
        (tmp_path / "function_app.py").write_text("import json\nimport no_such_module\n")
        process = command_line(tmp_path)
        keys_file = tmp_path / "master_key"
        url = await asyncio.to_thread(read_url, process)
        async with client(url, read_keys(keys_file)) as http, http.get("/api/dashboard") as answer:
            assert answer.status == 404
        process.send_signal(signal.SIGTERM)
        _, errors = await asyncio.to_thread(process.communicate)
        assert (process.returncode, errors) == (0, "")
        (line,) = [json.loads(each) for each in (tmp_path / "host.log").read_text().splitlines()]
        assert (line["level"], line["action"]) == ("ERROR", "indexing_failed")
        assert line["message"] == (
            "function_app.py cannot be loaded: ModuleNotFoundError: No module named "
            "'no_such_module' (function_app.py, line 2); 0 functions found"
        )

    async def test_a_failure_is_logged_as_one_structured_line(
        self, command_line: Callable[..., Any], tmp_path: Path
    ) -> None:
        process = command_line()
        async with client(read_url(process), read_keys(tmp_path / "master_key")) as http:
            answer = await http.get("/api/broken")
        assert answer.status == 500
        process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(process.communicate)
        lines = [json.loads(each) for each in (tmp_path / "host.log").read_text().splitlines()]
        failed = [each for each in lines if each["level"] == "ERROR"]
        assert len(failed) == 1
        assert failed[0]["action"] == "invocation_failed"
        assert failed[0]["function"] == "broken"
        assert "broken on purpose" in failed[0]["traceback"]
