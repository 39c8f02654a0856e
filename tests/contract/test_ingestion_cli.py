"""The command line for what failed, against Azurite and the stand-ins."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from azure.eventhub import EventData
from azure.eventhub.aio import EventHubProducerClient
from azure.servicebus.aio import ServiceBusClient
from azure.storage.queue.aio import QueueClient

from local.amqp_broker import AmqpStandIn
from local.amqp_broker.model.properties import HubProperties
from local.azurite import Azurite
from shared import settings
from shared.autoscaling import HubMetric, Threshold
from shared.cli.command import DONE, FAILED, WRONG
from shared.cli.main import main
from shared.ingestion.decoding.decoding import decode
from shared.ingestion.decoding.readings import MetricSubscriptions
from shared.ingestion.events import process_batch
from shared.ingestion.events.survey import Span
from shared.wiring.app import App
from tests.builders import resource
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
    """A partition of which every event failed: nobody had declared the metric."""

    def __init__(
        self, file: Path, stand_in: AmqpStandIn, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.file, self.stand_in, self.capsys = file, stand_in, capsys

    async def main(self, *arguments: str) -> tuple[int, str]:
        self.capsys.readouterr()
        code = await asyncio.to_thread(main, ["--settings", str(self.file), *arguments])
        return code, self.capsys.readouterr().out

    async def letters(self, *arguments: str) -> tuple[int, Any]:
        code, out = await self.main("dead-letters", *arguments, "--json")
        return code, json.loads(out)

    async def remaining(self) -> list[int]:
        _, shown = await self.letters("list")
        return [letter["sequence"] for letter in shown["dead_letters"]]


@pytest.fixture
async def rig(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Rig]:
    kept = dict(os.environ)
    with Azurite() as azurite:
        async with AmqpStandIn() as stand_in:
            stand_in.namespace.declare_queue("rescue")
            groups = HubProperties(partition_count=1, consumer_groups=("$Default", "readback"))
            stand_in.broker.declare_hub("metrics", groups)
            values = {
                **SINGLE,
                "AzureWebJobsStorage": azurite.connection_string,
                "ServiceBusConnection": stand_in.connection_string,
                "EventHubConnection": stand_in.connection_string,
            }
            file = tmp_path / "local.settings.json"
            file.write_text(json.dumps({"Values": values}), encoding="utf-8")
            settings.add_file(file)
            await fail_all(stand_in)
            yield Rig(file, stand_in, capsys)
    os.environ.clear()
    os.environ.update(kept)


async def fail_all(stand_in: AmqpStandIn) -> None:
    producer = EventHubProducerClient.from_connection_string(
        stand_in.connection_string, eventhub_name="metrics"
    )
    async with producer:
        batch = await producer.create_batch(partition_id="0")
        for body in [*map(metric, range(GOOD)), BINARY]:
            batch.add(EventData(body))
        await producer.send_batch(batch)
    async with App() as app:
        line = app.ingestion.pipeline("0")
        back = await line.consumer.hub.read_back(line.consumer.stream, Span(0, GOOD))
        await process_batch.run(back.events, line.consumer)


def fix_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody declares the metric."""
    shop = resource("shop", metrics={"load": HubMetric()}, policy=Threshold("load", 100, 10))
    monkeypatch.setattr("scaling_rules.resources", lambda _settings: [shop])


async def sent_ids() -> list[str]:
    connection = App().storage
    queue = QueueClient.from_connection_string(connection.connection_string, "metrics")
    async with queue:
        messages = [message async for message in queue.receive_messages(max_messages=32)]
    return sorted(json.loads(message.content)["id"] for message in messages)


async def test_what_failed_is_listed_shown_mended_and_put_in_again_once(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, shown = await rig.letters("list", "--limit", "3")
    assert code == DONE
    assert [letter["sequence"] for letter in shown["dead_letters"]] == [0, 1, 2]
    assert shown["more"]
    code, text = await rig.main("dead-letters", "list")
    assert (code, text.count("poison")) == (DONE, GOOD + 1)
    _, shown = await rig.letters("show", "0", "2")
    assert json.loads(shown["body"]["text"])["value"]["value"] == 2
    assert "declares no metric" in shown["error"]
    _, shown = await rig.letters("show", "0", str(GOOD))
    assert shown["body"] == {"base64": "AP8="}
    assert "(base64) AP8=" in (await rig.main("dead-letters", "show", "0", str(GOOD)))[1]

    code, shown = await rig.letters("redrive", "0", "1")
    assert (code, len(shown["failed"])) == (FAILED, 1)
    fix_handler(monkeypatch)
    code, shown = await rig.letters("redrive", "--all")
    assert (code, len(shown["done"]), len(shown["failed"])) == (FAILED, GOOD, 1)
    assert await sent_ids() == [f"metrics:0:{n}" for n in range(GOOD)]
    assert await rig.remaining() == [GOOD]

    code, shown = await rig.letters("redrive", "0", str(GOOD), "--to-queue", "rescue")
    assert (code, len(shown["done"])) == (DONE, 1)
    client = ServiceBusClient.from_connection_string(rig.stand_in.connection_string)
    async with client, client.get_queue_receiver("rescue") as receiver:
        (message,) = await receiver.receive_messages(1, max_wait_time=5)
        assert message.message_id == f"metrics:0:{GOOD}"
        assert b"".join(message.body) == BINARY
    assert await rig.remaining() == []
    assert (await rig.main("dead-letters", "show", "0", "1"))[0] == FAILED


async def test_purging_goes_by_age_and_can_be_tried(rig: Rig) -> None:
    code, out = await rig.main("account", "--json")
    (shown,) = json.loads(out)["streams"]
    assert (code, shown["partition_id"], shown["first"], shown["last"]) == (DONE, "0", 0, GOOD)
    code, shown = await rig.letters("purge", "--older-than", "1d")
    assert (code, shown["done"]) == (DONE, [])
    _, shown = await rig.letters("purge", "--older-than", "0s", "--dry-run")
    assert (len(shown["done"]), len(await rig.remaining())) == (GOOD + 1, GOOD + 1)
    _, shown = await rig.letters("purge", "--older-than", "0s")
    assert (len(shown["done"]), await rig.remaining()) == (GOOD + 1, [])


async def test_a_replay_has_an_account_of_its_own(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    fix_handler(monkeypatch)
    _, out = await rig.main("replay", "0", "--into", "look", "--from-sequence", "1", "--json")
    shown = json.loads(out)
    assert (shown["first"], shown["last"], shown["effects"], shown["dead_letters"]) == (1, 4, 3, 1)
    assert len(await rig.remaining()) == GOOD + 2, "one of the replay, five of the stream"
    _, of_replay = await rig.letters("list", "--group", "$Default~look")
    assert [letter["sequence"] for letter in of_replay["dead_letters"]] == [GOOD]
    code, text = await rig.main("replay", "0", "--into", "for-real", "--send")
    assert (code, "0 to 4 of 4: 4 effects, 1 dead letters, 0 gone" in text) == (DONE, True)
    assert await sent_ids() == [f"metrics:0:{n}" for n in range(GOOD)]


@pytest.mark.parametrize(
    "arguments",
    [
        ("dead-letters", "redrive"),
        ("dead-letters", "redrive", "--all", "0", "1"),
        ("replay", "0", "--into", "a~b"),
        ("run", "--handler", "nowhere:nothing"),
    ],
)
async def test_what_makes_no_sense_is_said_before_anything_is_done(
    arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "local.settings.json"
    hub = "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=a;SharedAccessKey=b"
    values = {
        **SINGLE,
        "AzureWebJobsStorage": "UseDevelopmentStorage=true",
        "ServiceBusConnection": hub,
        "EventHubConnection": hub,
    }
    for key in (*values, "IngestionHandler"):
        monkeypatch.setenv(key, "")
        monkeypatch.delenv(key)
    file.write_text(json.dumps({"Values": values}), encoding="utf-8")
    assert await asyncio.to_thread(main, ["--settings", str(file), *arguments]) == WRONG


async def test_one_value_is_sent_as_an_event_that_the_app_understands(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("send-reading", "shop", "load", "42.5", "--time", "2026-03-01T12:00:00Z", "--json")
    code = await asyncio.to_thread(main, [*words, "--settings", str(rig.file)])
    said = rig.capsys.readouterr()
    assert code == DONE
    assert "this will be a dead letter: scaling_rules.py declares no metric 'load'" in said.err
    ingestion = App().ingestion
    reader, stream = ingestion.hub, ingestion.stream("0")
    last = (await reader.state(stream)).last_enqueued
    (event,) = (await reader.read_back(stream, Span(last, last))).events
    assert event.body.decode() == json.loads(said.out)["event"]
    (reading,) = decode(event.body, MetricSubscriptions(frozenset({("shop", "load")}))).readings
    assert (reading.value, reading.time) == (42.5, datetime(2026, 3, 1, 12, tzinfo=UTC))
