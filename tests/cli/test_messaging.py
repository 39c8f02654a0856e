"""The command that sends the lines of a file to a Service Bus queue.

The queue is in a broker on loopback, or in Microsoft's emulator.
"""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient

from local.amqp_broker import AmqpStandIn, faults, in_thread
from shared.azure.service_bus import duplicate_window
from shared.cli.command import DONE, FAILED, WRONG
from shared.cli.main import main
from shared.messaging.batch_sender import BatchSender
from shared.messaging.lines import read_messages
from shared.messaging.model import BadLines
from shared.wiring import batch_sender
from tests.emulators.rig import Bus, bus_in_thread

Write = Callable[[str], str]


@dataclass(frozen=True)
class Jobs:
    """A queue that only these tests use."""

    bus: Bus
    name: str


@pytest.fixture(scope="module")
def jobs() -> Iterator[Jobs]:
    with bus_in_thread() as bus:
        yield Jobs(bus, asyncio.run(bus.queue()))


@pytest.fixture(autouse=True)
def _connected(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ServiceBusConnection", jobs.bus.connection.connection_string)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def _write(text: str) -> str:
        (tmp_path / "messages.jsonl").write_text(text, encoding="utf-8")
        return str(tmp_path / "messages.jsonl")

    return _write


def received(jobs: Jobs) -> list[tuple[str, str | None]]:
    string = jobs.bus.connection.connection_string
    with (
        ServiceBusClient.from_connection_string(string) as client,
        client.get_queue_receiver(jobs.name) as receiver,
    ):
        messages = receiver.receive_messages(10, 0.5)
        for each in messages:
            receiver.complete_message(each)
        return [(str(m), m.content_type) for m in messages]


def test_the_lines_of_a_file_are_sent_in_order(
    jobs: Jobs, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [{"body": "text", "message_id": "1"}, {"body": {"a": [1, "ü"]}, "subject": "s"}]
    file = write("\n".join(map(json.dumps, lines)) + "\n\n")
    assert main(["send-messages", file, "--queue", jobs.name]) == DONE
    assert received(jobs) == [("text", None), ('{"a":[1,"\\u00fc"]}', "application/json")]
    assert "2 message(s) sent in 1 batch(es)" in capsys.readouterr().out
    assert main(["send-messages", file, "--queue", jobs.name, "--json"]) == DONE
    assert json.loads(capsys.readouterr().out)["sent"] == 2
    received(jobs)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le"])
def test_a_file_may_have_any_encoding_of_unicode_and_the_line_ends_of_windows(
    jobs: Jobs, tmp_path: Path, encoding: str
) -> None:
    file = tmp_path / "messages.jsonl"
    file.write_bytes('{"body": "ü"}\r\n{"body": "b"}\r\n'.encode(encoding))
    assert main(["send-messages", str(file), "--queue", jobs.name]) == DONE
    assert received(jobs) == [("ü", None), ("b", None)]


def test_raw_lines_from_standard_input_are_sent_as_bodies(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b'{"n": 1}\n[2]\n')))
    assert main(["send-messages", "-", "--queue", jobs.name, "--raw", "--order", "free"]) == DONE
    assert sorted(body for body, _ in received(jobs)) == ["[2]", '{"n": 1}']


def test_bad_lines_are_reported_by_number_and_nothing_is_sent(
    jobs: Jobs, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write('{"body": 1}\n{"body": 2, "sesion_id": "x"}\n\nnonsense\n{"body": 3}')
    assert main(["send-messages", file, "--queue", jobs.name]) == WRONG
    errors = capsys.readouterr().err
    assert "line 2: unknown field 'sesion_id'" in errors
    assert 'line 4: not JSON (Expecting value at column 1). Write plain text as {"body"' in errors
    assert received(jobs) == []


def test_a_missing_file_connection_or_queue_and_a_huge_message_are_refused(
    jobs: Jobs, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["send-messages", "no/such/file", "--queue", jobs.name]) == WRONG
    file = write('{"body": 1}')
    assert main(["send-messages", file, "--queue", jobs.name, "--connection", "Elsewhere"]) == WRONG
    assert "Elsewhere" in capsys.readouterr().err
    assert main(["send-messages", file, "--queue", "nowhere"]) == FAILED
    assert "nowhere' could not be found" in capsys.readouterr().err
    file = write(json.dumps({"body": "x" * 300_000, "message_id": "huge"}) + '\n{"body": 1}')
    assert main(["send-messages", file, "--queue", jobs.name, "--json"]) == FAILED
    answer = json.loads(capsys.readouterr().out)
    assert answer["sent"] == len(received(jobs)) == 1
    assert answer["refused"][0].startswith("#0 (huge): 300032 bytes; the link accepts")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("option", [[], ["--resend-unknown"]])
def test_messages_that_may_have_arrived_are_not_sent_again_after_the_window_of_the_queue(
    jobs: Jobs,
    write: Write,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    option: list[str],
) -> None:
    queue = asyncio.run(jobs.bus.queue(duplicate_window=timedelta(seconds=20)))
    jobs.bus.inside().faults.arm(faults.drop_after_accept(queue))
    ticks = iter([0.0, *[11.0] * 9])
    build = batch_sender.batch_sender

    def with_clock(*arguments: Any, **options: Any) -> BatchSender:
        sender = build(*arguments, **options)
        sender.seconds = lambda: next(ticks)
        return sender

    monkeypatch.setattr(batch_sender, "batch_sender", with_clock)
    file = write('{"body": 1, "message_id": "a"}\n{"body": 2, "message_id": "b"}')
    code = main(["send-messages", file, "--queue", queue, "--json", *option])
    answer = json.loads(capsys.readouterr().out)
    if option:
        assert (code, answer["sent"], answer["unknown"]) == (DONE, 2, [])
        return
    assert (code, answer["sent"], answer["unknown"]) == (FAILED, 0, ["#0 (a)", "#1 (b)"])
    assert "detects duplicates only for 0:00:20" in answer["failed"]
    assert "give --resend-unknown" in answer["failed"]


@pytest.mark.parametrize(
    ("seconds", "kind"), [(20, "queue"), (3600, "queue"), (None, "queue"), (None, "topic")]
)
async def test_the_window_is_read_from_the_queue_or_topic(
    jobs: Jobs, seconds: int | None, kind: str
) -> None:
    window = None if seconds is None else timedelta(seconds=seconds)
    is_topic = kind == "topic"
    made = jobs.bus.topic("all") if is_topic else jobs.bus.queue(duplicate_window=window)
    at = jobs.bus.administration
    assert await duplicate_window(at, await made, topic=is_topic) == window
    assert "nowhere" in str(await duplicate_window(at, "nowhere", topic=is_topic))


def test_an_unreachable_endpoint_is_reported_at_once_and_given_up(
    jobs: Jobs,
    write: Write,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with in_thread(AmqpStandIn()) as gone:
        monkeypatch.setenv("ServiceBusConnection", gone.connection_string)
    file = write('{"body": 1}')
    assert main(["send-messages", file, "--queue", jobs.name, "--tries", "2"]) == FAILED
    first, failed, error = capsys.readouterr().err.splitlines()
    assert first.startswith(f"1 message(s) to {jobs.name} at 127.0.0.1")
    assert failed.endswith("; next attempt in 0.5 s")
    assert error.startswith("error: no connection: ")


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        (['{"body": "", "message_id": 5}'], "message_id is 5"),
        (['{"body": "", "time_to_live_seconds": "1"}'], "it must be a number"),
        (['{"body": "", "scheduled_at": "noon"}'], "ISO 8601"),
        (['{"body": "", "application_properties": {"a": []}}'], "texts, numbers and booleans"),
        (["x"] * 100, "… and 80 more"),
    ],
)
def test_an_error_names_fields_of_the_wrong_type_and_only_the_first_of_many_bad_lines(
    lines: list[str], complaint: str
) -> None:
    with pytest.raises(BadLines, match=complaint):
        read_messages(lines)
