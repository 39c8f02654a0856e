"""The command line, from a file to a queue."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient

from local.amqp_broker import AmqpStandIn, in_thread
from shared.cli.command import DONE, FAILED, WRONG
from shared.cli.main import main
from shared.messaging.errors import BadLines
from shared.messaging.lines import read_messages

Write = Callable[[str], str]


@pytest.fixture(scope="module")
def bus() -> Iterator[AmqpStandIn]:
    with in_thread(AmqpStandIn()) as running:
        running.namespace.declare_queue("jobs")
        yield running


@pytest.fixture(autouse=True)
def _connected(bus: AmqpStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ServiceBusConnection", bus.connection_string)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def _write(text: str) -> str:
        (tmp_path / "messages.jsonl").write_text(text, encoding="utf-8")
        return str(tmp_path / "messages.jsonl")

    return _write


def received(bus: AmqpStandIn) -> list[tuple[str, str | None]]:
    with (
        ServiceBusClient.from_connection_string(bus.connection_string) as client,
        client.get_queue_receiver("jobs") as receiver,
    ):
        messages = receiver.receive_messages(10, 0.5)
        for each in messages:
            receiver.complete_message(each)
        return [(str(m), m.content_type) for m in messages]


def test_a_file_is_sent_in_its_order(
    bus: AmqpStandIn, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [{"body": "text", "message_id": "1"}, {"body": {"a": [1, "ü"]}, "subject": "s"}]
    file = write("\n".join(map(json.dumps, lines)) + "\n\n")
    assert main(["send-messages", file, "--queue", "jobs"]) == DONE
    assert received(bus) == [("text", None), ('{"a":[1,"\\u00fc"]}', "application/json")]
    assert "2 message(s) sent in 1 batch(es)" in capsys.readouterr().out
    assert main(["send-messages", file, "--queue", "jobs", "--json"]) == DONE
    assert json.loads(capsys.readouterr().out)["sent"] == 2
    received(bus)


def test_lines_can_be_bodies_and_come_from_the_input(
    bus: AmqpStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO('{"n": 1}\n[2]\n'))
    assert main(["send-messages", "-", "--queue", "jobs", "--raw", "--order", "free"]) == DONE
    assert sorted(body for body, _ in received(bus)) == ["[2]", '{"n": 1}']


def test_what_is_wrong_is_said_with_its_line_and_nothing_is_sent(
    bus: AmqpStandIn, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write('{"body": 1}\n{"body": 2, "sesion_id": "x"}\n\nnonsense\n{"body": 3}')
    assert main(["send-messages", file, "--queue", "jobs"]) == WRONG
    said = capsys.readouterr().err
    assert "line 2: unknown field 'sesion_id'" in said
    assert "line 4: Expecting value" in said
    assert received(bus) == []


def test_a_missing_file_a_missing_connection_and_a_huge_message_are_wrong(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["send-messages", "no/such/file", "--queue", "jobs"]) == WRONG
    file = write('{"body": 1}')
    assert main(["send-messages", file, "--queue", "jobs", "--connection", "Elsewhere"]) == WRONG
    assert "Elsewhere" in capsys.readouterr().err
    file = write(json.dumps({"body": "x" * 300_000, "message_id": "huge"}))
    assert main(["send-messages", file, "--queue", "jobs"]) == WRONG
    assert "#0 (huge)" in capsys.readouterr().err


def test_a_queue_that_is_not_there_is_said(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write('{"body": 1}')
    assert main(["send-messages", file, "--queue", "nowhere"]) == FAILED
    assert "'nowhere' could not be found" in capsys.readouterr().err


def test_a_dead_endpoint_is_named_at_once_and_given_up(
    write: Write, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with in_thread(AmqpStandIn()) as gone:
        monkeypatch.setenv("ServiceBusConnection", gone.connection_string)
    file = write('{"body": 1}')
    assert main(["send-messages", file, "--queue", "jobs", "--tries", "2"]) == FAILED
    first, failed, error = capsys.readouterr().err.splitlines()
    assert first.startswith("1 message(s) to jobs at 127.0.0.1")
    assert failed.endswith("; trying again in 0.5 s")
    assert error.startswith("error: no connection: ")


@pytest.mark.parametrize(
    "arguments", [[], ["send-messages"], ["send-messages", "f"], ["send-messages", "f", "--queue"]]
)
def test_a_wrong_command_ends_with_two(arguments: list[str]) -> None:
    assert main(arguments) == WRONG == 2


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"message_id": 5}, "message_id is 5"),
        ({"time_to_live_seconds": "1"}, "a number is needed"),
        ({"scheduled_at": "noon"}, "ISO 8601"),
        ({"application_properties": {"a": []}}, "texts, numbers and booleans"),
    ],
)
def test_fields_of_the_wrong_kind_are_named(fields: dict[str, object], complaint: str) -> None:
    with pytest.raises(BadLines, match=complaint):
        read_messages([json.dumps({"body": "", **fields})])


def test_many_bad_lines_are_counted() -> None:
    with pytest.raises(BadLines, match="… and 80 more"):
        read_messages(["x"] * 100)
