"""The commands for dead letters, replays and single events, against Azurite and the stand-ins."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from azure.core.exceptions import ResourceNotFoundError
from azure.data.tables.aio import TableServiceClient
from azure.servicebus.aio import ServiceBusClient
from azure.storage.queue.aio import QueueClient

from local.azurite import Azurite
from shared import settings
from shared.autoscaling import HubMetric, Threshold
from shared.autoscaling.acting.activation import LOCAL
from shared.autoscaling.state import RulesInForce, ScalingState
from shared.cli.command import DONE, FAILED, WRONG
from shared.cli.main import main
from shared.ingestion.decoding.decode import decode
from shared.ingestion.decoding.readings import MetricSubscriptions
from shared.ingestion.events import process_batch
from shared.ingestion.model import Span
from shared.wiring.app import App
from shared.wiring.rules_version import rules_version
from tests.builders import NOW, resource
from tests.emulators.rig import Bus, Hub, an_empty_hub, running_bus
from tests.settings.test_settings import SINGLE

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

BINARY = b"\x00\xff"
GOOD = 4


def metric(number: int) -> bytes:
    value = {"time": "2026-03-01T12:00:00Z", "value": number}
    metric = {"schema_version": 1, "resource_name": "shop", "name": "load", "value": value}
    return json.dumps(metric).encode()


class Rig:
    """A partition whose events all failed, because their metric was not declared."""

    def __init__(self, file: Path, hub: Hub, bus: Bus, capsys: pytest.CaptureFixture[str]) -> None:
        self.file, self.hub, self.bus, self.capsys = file, hub, bus, capsys
        self.told = ""
        """What the last command wrote to stderr."""

    def id_of(self, number: int) -> str:
        return f"{self.hub.connection.hub}:0:{number}"

    async def main(self, *arguments: str) -> tuple[int, str]:
        self.capsys.readouterr()
        code = await asyncio.to_thread(main, ["--settings", str(self.file), *arguments])
        out, self.told = self.capsys.readouterr()
        return code, out

    async def letters(self, *arguments: str) -> tuple[int, Any]:
        code, out = await self.main("dead-letters", *arguments, "--json")
        return code, json.loads(out)

    async def remaining(self) -> list[int]:
        _, listed = await self.letters("list")
        return [letter["sequence"] for letter in listed["dead_letters"]]


@pytest.fixture(scope="module")
def account() -> Iterator[str]:
    """The connection string of a storage account that no other module uses."""
    with Azurite() as running:
        yield running.connection_string


@pytest.fixture
async def rig(
    account: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> AsyncIterator[Rig]:
    kept = dict(os.environ)
    async with TableServiceClient.from_connection_string(account) as tables:
        async for table in tables.list_tables():  # of the test before
            await tables.delete_table(table.name)
    async with QueueClient.from_connection_string(account, "metrics") as queue:
        with suppress(ResourceNotFoundError):
            await queue.clear_messages()
    async with AsyncExitStack() as stack:
        hub = await stack.enter_async_context(an_empty_hub())
        bus = await stack.enter_async_context(running_bus())
        values = {
            **SINGLE,
            **hub.settings,
            "AzureWebJobsStorage": account,
            "ServiceBusConnection": bus.connection.connection_string,
        }
        file = tmp_path / "local.settings.json"
        file.write_text(json.dumps({"Values": values}), encoding="utf-8")
        settings.add_file(file)
        await fail_all(hub)
        yield Rig(file, hub, bus, capsys)
    os.environ.clear()
    os.environ.update(kept)


async def fail_all(hub: Hub) -> None:
    await hub.send(*map(metric, range(GOOD)), BINARY)
    async with App() as app:
        line = app.ingestion.pipeline("0")
        back = await line.consumer.hub.read_back(line.consumer.stream, Span(0, GOOD))
        await process_batch.process_batch(back.events, line.consumer)


def fix_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Declare the metric, so that a redrive succeeds."""
    shop = resource("shop", metrics={"load": HubMetric()}, policy=Threshold("load", 100, 10))
    monkeypatch.setattr("scaling_rules.resources", lambda _settings: [shop])


async def sent_ids() -> list[str]:
    connection = App().storage
    queue = QueueClient.from_connection_string(connection.connection_string, "metrics")
    async with queue:
        messages = [message async for message in queue.receive_messages(max_messages=32)]
    return sorted(json.loads(message.content)["id"] for message in messages)


async def test_dead_letters_are_listed_shown_and_redriven_once(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, output = await rig.letters("list", "--limit", "3")
    assert code == DONE
    assert [letter["sequence"] for letter in output["dead_letters"]] == [0, 1, 2]
    assert output["more"]
    code, text = await rig.main("dead-letters", "list")
    assert (code, text.count("poison")) == (DONE, GOOD + 1)
    partition, _, _ = text.split("poison")[0].split()[-3:]
    assert partition.endswith("/0")
    _, output = await rig.letters("show", partition, "2")
    assert output["enqueued_at"] <= output["failed_at"]
    assert json.loads(output["body"]["text"])["value"]["value"] == 2
    assert "does not declare the metric" in output["error"]
    _, output = await rig.letters("show", "0", str(GOOD))
    assert output["body"] == {"base64": "AP8="}
    assert "(base64) AP8=" in (await rig.main("dead-letters", "show", "0", str(GOOD)))[1]

    code, output = await rig.letters("redrive", "0", "1")
    assert (code, len(output["failed"])) == (FAILED, 1)
    fix_handler(monkeypatch)
    code, output = await rig.letters("redrive", "--all")
    assert (code, len(output["done"]), len(output["failed"])) == (FAILED, GOOD, 1)
    assert await sent_ids() == [rig.id_of(n) for n in range(GOOD)]
    assert await rig.remaining() == [GOOD]

    rescue = await rig.bus.queue()
    code, output = await rig.letters("redrive", "0", str(GOOD), "--to-queue", rescue)
    assert (code, len(output["done"])) == (DONE, 1)
    client = ServiceBusClient.from_connection_string(rig.bus.connection.connection_string)
    async with client, client.get_queue_receiver(rescue) as receiver:
        (message,) = await receiver.receive_messages(1, max_wait_time=5)
        assert (message.message_id or "").startswith(f"{rig.id_of(GOOD)}:")
        assert b"".join(message.body) == BINARY
    assert await rig.remaining() == []
    assert (await rig.main("dead-letters", "show", "0", "1"))[0] == FAILED


async def test_a_redrive_says_whether_the_app_runs_the_same_rules(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def redrive(*words: str) -> int:
        return (await rig.main("dead-letters", "redrive", *words))[0]

    async def app_runs(version: str) -> None:
        async with App() as app:
            before = await app.scaling.store.load("shop")
            state = (before.state or ScalingState()).with_rules(RulesInForce(version, NOW))
            await app.scaling.store.commit(before, state, ())

    fix_handler(monkeypatch)
    assert await redrive("0", "0") == DONE
    assert "whether it runs these rules" in rig.told
    await app_runs("0123456789ab")
    assert await redrive("--all") == WRONG
    assert await rig.remaining() == list(range(1, GOOD + 1))
    assert await redrive("0", "2") == WRONG
    assert "version 0123456789ab of the rules for shop" in rig.told
    assert await redrive("0", "2", "--own-rules") == DONE
    await app_runs(rules_version(App().settings.environ).removeprefix(LOCAL))
    assert (await redrive("0", "3"), rig.told) == (DONE, "")


async def test_purging_goes_by_age_and_has_a_dry_run(rig: Rig) -> None:
    code, out = await rig.main("account", "--json")
    (output,) = json.loads(out)["streams"]
    assert (code, output["partition_id"], output["first"], output["last"]) == (DONE, "0", 0, GOOD)
    _, text = await rig.main("account")
    assert f"{output['hub']}/$Default/0: 0 to {GOOD}, enqueued until 20" in text
    assert "0 set aside, 0 missing" in text
    every = range(GOOD + 1)
    code, output = await rig.letters("purge", "--older-than", "1d")
    assert (code, output["done"]) == (DONE, [])
    listed = await rig.letters("purge", "--older-than", "0s", "--dry-run")
    assert f"would be deleted: {GOOD + 1}" in rig.told
    assert listed == await rig.letters("list")
    assert await rig.remaining() == list(every)
    _, output = await rig.letters("purge", "--older-than", "0s")
    assert (len(output["done"]), await rig.remaining()) == (GOOD + 1, [])


async def test_a_replay_keeps_its_own_accounting(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    fix_handler(monkeypatch)
    _, out = await rig.main("replay", "0", "--into", "look", "--from-sequence", "1", "--json")
    output = json.loads(out)
    assert [output[each] for each in ("first", "last", "effects", "dead_letters")] == [1, 4, 3, 1]
    assert len(await rig.remaining()) == GOOD + 2, "one of the replay, five of the stream"
    replayed = ("--group", "$Default~look")
    for group, words in (("$Default", ()), ("$Default~look", replayed)):
        code, redriven = await rig.letters("redrive", "0", str(GOOD), *words)
        assert code == FAILED
        assert [each["consumer_group"] for each in redriven["failed"]] == [group]
    assert (await rig.letters("show", "0", str(GOOD)))[1]["consumer_group"] == "$Default"
    _, of_replay = await rig.letters("list", *replayed)
    assert [letter["sequence"] for letter in of_replay["dead_letters"]] == [GOOD]
    code, text = await rig.main("replay", "0", "--into", "for-real", "--send")
    assert (code, "0 to 4 of 4: 4 effects, 1 dead letters, 0 missing" in text) == (DONE, True)
    assert await sent_ids() == [rig.id_of(n) for n in range(GOOD)]


@pytest.mark.parametrize(
    "arguments",
    [
        ("dead-letters", "redrive"),
        ("dead-letters", "redrive", "--all", "0", "1"),
        ("replay", "0", "--into", "a~b"),
        ("run", "--handler", "nowhere:nothing"),
    ],
)
async def test_an_invalid_command_is_refused_before_it_has_any_effect(
    arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "local.settings.json"
    string = "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=a;SharedAccessKey=b"
    values = {
        **SINGLE,
        "AzureWebJobsStorage": "UseDevelopmentStorage=true",
        **dict.fromkeys(("ServiceBusConnection", "EventHubConnection"), string),
    }
    for key in (*values, "IngestionHandler"):
        monkeypatch.setenv(key, "")
        monkeypatch.delenv(key)
    file.write_text(json.dumps({"Values": values}), encoding="utf-8")
    assert await asyncio.to_thread(main, ["--settings", str(file), *arguments]) == WRONG


async def test_send_reading_sends_an_event_that_the_app_can_decode(rig: Rig) -> None:
    words, time = ("send-reading", "shop", "load"), "--time"
    code, out = await rig.main(*words, "42.5", time, "2026-03-01T12:00:00Z", "--json")
    assert code == DONE
    undeclared = "scaling_rules.py does not declare the metric 'load'"
    assert f"this event will become a dead letter: {undeclared}" in rig.told
    ingestion = App().ingestion
    reader, stream = ingestion.hub, ingestion.stream("0")
    last = (await reader.state(stream)).last_enqueued
    (event,) = (await reader.read_back(stream, Span(last, last))).events
    assert event.body.decode() == json.loads(out)["event"]
    (reading,) = decode(event.body, MetricSubscriptions(frozenset({("shop", "load")}))).readings
    assert (reading.value.value, reading.value.time) == (42.5, datetime(2026, 3, 1, 12, tzinfo=UTC))
    for number in ("nan", "1e400"):
        assert (await rig.main(*words, number))[0] == WRONG
        assert "which JSON cannot hold" in rig.told
    assert (await reader.state(stream)).last_enqueued == last
    assert (await rig.main(*words, "42.5", time, "2126-03-01T12:00:00Z"))[0] == DONE
    assert "note: the scaling logic will refuse this value: 2126-03-01T12:00:00+00:00 " in rig.told
