"""Service Bus and Event Hub triggers of the local host, with the official worker library.

Like the real host, it settles a message by its function's outcome. It writes a checkpoint after a
failure, unless a retry policy holds the partition.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.eventhub import EventData
from azure.eventhub.aio import EventHubProducerClient
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from azure.storage.blob.aio import ContainerClient

from local.amqp_broker.administration import ServiceBusStandIn, service_bus
from local.amqp_broker.model.properties import HubProperties, QueueProperties
from local.azurite import Azurite
from local.functions_host import FunctionsHost, HostOptions
from local.functions_host.event_hub_invocation import PartitionPlace, batch_invocation
from local.functions_host.event_hub_reading import CONTAINER
from local.functions_host.functions import EVENT_HUB_TRIGGER, Binding
from shared.ingestion.store.owners import OwnershipStore
from shared.ingestion.store.tables import TableRows
from shared.settings.connections import StorageConnection
from tests.local.amqp_rig import LEAVES_SOCKETS_OPEN, forget_open_sockets
from tests.local.polling import POLL_SECONDS, until

pytestmark = LEAVES_SOCKETS_OPEN

ROOT = Path(__file__).parents[2]
APP = Path(__file__).parent / "messaging_app"
SECONDS_MAX = 30.0
LISTENING = ("plain", "session", "subscribed", "kept", "many", "one")
LOCK = timedelta(seconds=2)
SUBSCRIPTION = "news/subscriptions/mail"


@dataclass
class Sample:
    """An app and its broker. Hubs and blobs survive a restart of the app; its journal does not."""

    bus: ServiceBusStandIn
    azurite: Azurite
    client: ServiceBusClient
    plain_queue: str
    host: FunctionsHost = field(init=False)

    @asynccontextmanager
    async def running(
        self, *functions: str, options: HostOptions | None = None
    ) -> AsyncIterator[Any]:
        """Run the app with only these functions enabled, and yield its module."""
        settings = self._settings(*functions)
        async with FunctionsHost(APP, settings=settings, options=options) as host:
            self.host = host
            yield sys.modules["function_app"]

    def _settings(self, *functions: str) -> dict[str, str]:
        others = [name for name in LISTENING if name not in functions]
        return {
            "AzureWebJobsStorage": self.azurite.connection_string,
            "Bus": self.bus.connection_string,
            "PlainQueue": self.plain_queue,
            **{f"AzureWebJobs.{name}.Disabled": "true" for name in others},
        }

    def process(self, stack: AsyncExitStack, folder: Path) -> subprocess.Popen[bytes]:
        """A host in another process that reads only the hub. It is killed at the end."""
        command = [sys.executable, "-m", "local.functions_host", "--app", str(APP), "--port", "0"]
        log = ["--log", str(folder / f"{uuid.uuid4().hex}.log")]
        environ = {"PATH": "", **self._settings("many")}
        process = subprocess.Popen(
            [*command, *log], cwd=ROOT, env=environ, stdout=subprocess.DEVNULL
        )
        stack.callback(process.wait)
        stack.callback(process.kill)
        return process

    def owners(self) -> OwnershipStore:
        storage = StorageConnection("Storage", self.azurite.connection_string)
        namespace = f"127.0.0.1:{self.bus.amqp.port}"
        return OwnershipStore(TableRows(storage), namespace, "telemetry", "$Default")

    async def send(self, queue: str, *bodies: str | dict[str, Any], **properties: Any) -> None:
        messages = [ServiceBusMessage(_text(body), **properties) for body in bodies]
        async with self.client.get_queue_sender(queue) as sender:
            await sender.send_messages(messages)

    async def publish(self, *bodies: bytes | dict[str, Any], partition: str = "0") -> None:
        """Send events in one batch. Each has its index in the list as a property."""
        producer = EventHubProducerClient.from_connection_string(
            self.bus.connection_string, eventhub_name="telemetry"
        )
        async with producer:
            batch = await producer.create_batch(partition_id=partition)
            for number, body in enumerate(bodies):
                event = EventData(body if isinstance(body, bytes) else json.dumps(body))
                event.properties = {"number": number, "kind": "test"}
                batch.add(event)
            await producer.send_batch(batch)

    def counts(self, path: str) -> tuple[int, int]:
        """The numbers of active and of dead-lettered messages."""
        broker = self.bus.amqp.broker
        counts = broker.namespace.counts(path, broker.now())
        return counts.active, counts.dead_letter

    async def publish_news(self, body: str) -> None:
        """Send a message to the topic over a separate connection."""
        client = ServiceBusClient.from_connection_string(self.bus.connection_string)
        async with client, client.get_topic_sender("news") as sender:
            await sender.send_messages(ServiceBusMessage(body))

    async def has_checkpoints(self, expected: dict[str, str]) -> None:
        """Wait for these sequence numbers, by hub, consumer group and partition."""
        deadline = time.monotonic() + SECONDS_MAX
        while (checkpoints := await self._checkpoints()) != expected:
            assert time.monotonic() < deadline, f"{checkpoints} instead of {expected}"
            await asyncio.sleep(POLL_SECONDS)

    async def _checkpoints(self) -> dict[str, str]:
        storage = self.azurite.connection_string
        async with ContainerClient.from_connection_string(storage, CONTAINER) as container:
            checkpoints = {}
            port = self.bus.amqp.port
            async for blob in container.list_blobs(f"127.0.0.1:{port}/", include=["metadata"]):
                _, hub, group, kind, partition = blob.name.split("/")
                if kind == "checkpoint":
                    checkpoints[f"{hub}/{group}/{partition}"] = blob.metadata["sequencenumber"]
            return checkpoints


def _text(body: str | dict[str, Any]) -> str:
    return body if isinstance(body, str) else json.dumps(body)


def noted(app: Any, kind: str) -> list[Any]:
    return [entry[kind] for entry in app.journal if kind in entry]


async def note_of(app: Any, kind: str, count: int) -> list[Any]:
    await until(lambda: len(noted(app, kind)) >= count, SECONDS_MAX)
    return noted(app, kind)


@pytest.fixture
async def sample(azurite: Azurite) -> AsyncIterator[Sample]:
    plain = f"plain-{uuid.uuid4().hex[:8]}"
    async with service_bus() as bus:
        namespace = bus.amqp.namespace
        namespace.declare_queue(plain, QueueProperties(max_delivery_count=2, lock_duration=LOCK))
        sessions = QueueProperties(requires_session=True, max_delivery_count=2, lock_duration=LOCK)
        namespace.declare_queue("working", sessions)
        namespace.declare_queue("kept")
        namespace.declare_topic("news")
        namespace.declare_subscription("news", "mail")
        hub = HubProperties(partition_count=2, consumer_groups=("$Default", "single"))
        bus.amqp.broker.declare_hub("telemetry", hub)
        async with ServiceBusClient.from_connection_string(bus.connection_string) as client:
            yield Sample(bus, azurite, client, plain)
    forget_open_sockets()


class TestServiceBus:
    """Each test checks several rules with one host, because the SDK is slow to open links."""

    async def test_messages_keep_properties_and_are_settled_even_after_a_broken_connection(
        self, sample: Sample
    ) -> None:
        queue = sample.plain_queue
        properties = {"region": "north", "size": 3}
        seen = {"message_id": "m-1", "subject": "s", "correlation_id": "c"}
        await sample.send(
            queue, "körper", content_type="text/plain", application_properties=properties, **seen
        )
        await sample.send("kept", "not completed")
        async with sample.running("plain", "subscribed", "kept") as app:
            (message,) = await note_of(app, "message", 1)
            await note_of(app, "kept", 1)
            assert (await sample.host.invoke("plain", "by hand")).succeeded
            await sample.send(queue, {"fail": True})
            await until(lambda: sample.counts(queue) == (0, 1), SECONDS_MAX)
            sample.bus.amqp.drop_connections()
            await sample.publish_news("good news")
            assert await note_of(app, "subscribed", 1) == ["good news"]
            await until(lambda: sample.counts(SUBSCRIPTION) == (0, 0), SECONDS_MAX)
            await sample.send(queue, {"seconds": 1})
            await note_of(app, "plain", 5)  # The host then stops and waits for its end.
        assert noted(app, "plain")[:4] == ["körper", "by hand", *['{"fail": true}'] * 2]
        assert (sample.counts(queue), sample.counts("kept")) == ((0, 1), (1, 0))
        assert {name: getattr(message, name) for name in seen} == seen
        assert (message.label, message.content_type) == ("s", "text/plain")
        assert message.application_properties == message.user_properties == properties
        assert (message.sequence_number, message.delivery_count) == (1, 1)
        assert message.enqueued_time_utc.tzinfo is not None
        assert message.lock_token

    async def test_concurrency_follows_host_json_and_locks_are_renewed_meanwhile(
        self, sample: Sample
    ) -> None:
        orders: list[dict[str, Any]] = [
            {"seconds": LOCK.total_seconds() * 1.2},
            *({"seconds": 0.3, "together": 4, "n": n} for n in "abcde"),
        ]
        await sample.send(sample.plain_queue, *orders)
        async with sample.running("plain") as app:
            await until(lambda: sample.counts(sample.plain_queue) == (0, 0), SECONDS_MAX)
        assert len(app.running["most"]) == 4
        assert len(noted(app, "plain")) == 6

    async def test_sessions_run_in_parallel_and_each_is_processed_in_order(
        self, sample: Sample
    ) -> None:
        await sample.send("working", {"fail": True}, session_id="bad")
        for session in "ab":
            orders = [{"together": 2, "s": session, "n": n} for n in range(3)]
            await sample.send("working", *orders, session_id=session)
        async with sample.running("session") as app:
            await until(lambda: sample.counts("working") == (0, 1), SECONDS_MAX)
            await sample.send(
                "working", {"n": 0}, session_id="late"
            )  # Idle sessions make room for it.
            await until(lambda: "late" in noted(app, "session"), SECONDS_MAX)
        assert sample.counts("working") == (0, 1)
        numbers: dict[str, list[Any]] = {name: [] for name in ("a", "b", "bad", "late")}
        for entry in app.journal:
            numbers[entry["session"]].append(json.loads(entry["body"]).get("n"))
        assert numbers == {"a": [0, 1, 2], "b": [0, 1, 2], "bad": [None, None], "late": [0]}
        assert {json.loads(body)["s"] for body in app.running["most"]} == {"a", "b"}


class TestEventHubs:
    async def test_a_retry_policy_holds_a_failed_batch_and_without_one_it_is_skipped(
        self, sample: Sample
    ) -> None:
        """Across a restart, which continues after the checkpoints."""
        await sample.publish(b"a", b"", b"\xff\x00", partition="1")
        await sample.publish({"fail": True})
        skipping = {"telemetry/single/0": "1", "telemetry/single/1": "2"}
        async with sample.running("many", "one") as app:
            await until(lambda: len(retries(app)) >= 4, SECONDS_MAX)
            await sample.publish(b"next")
            await sample.has_checkpoints({**skipping, "telemetry/$default/1": "2"})
        assert [b"next"] not in noted(app, "many")
        assert retries(app) == list(range(len(retries(app))))
        check_events(app.journal, [b"a", b"", b"\xff\x00"])
        assert [body for body in noted(app, "one") if len(body) > 2] == ['{"fail": true}', "next"]
        async with sample.running("many", "one") as app:
            app.healed.add("many")
            held = {"telemetry/$default/0": "1", "telemetry/$default/1": "2"}
            await sample.has_checkpoints({**skipping, **held})
        again = [body for bodies in noted(app, "many") for body in bodies]
        assert (again, noted(app, "one")) == ([b'{"fail": true}', b"next"], [])

    async def test_two_hosts_share_the_partitions_and_one_takes_over_from_a_killed_host(
        self, sample: Sample, tmp_path: Path
    ) -> None:
        async with AsyncExitStack() as stack:
            owners = sample.owners()
            stack.push_async_callback(owners.close)
            hosts = {each.pid: each for each in [sample.process(stack, tmp_path) for _ in "ab"]}

            async def held() -> dict[str, int]:
                """The process that reads each partition."""
                rows = (await owners.owners()).rows
                named = [row for row in rows if row.owner]
                return {row.partition_id: int(row.owner.split("-")[-2]) for row in named}

            async def owned_by(pids: Collection[int]) -> None:
                deadline = time.monotonic() + SECONDS_MAX
                while sorted((owners_now := await held()).values()) != sorted(pids):
                    assert time.monotonic() < deadline, f"{owners_now} instead of {pids}"
                    await asyncio.sleep(POLL_SECONDS)

            await owned_by(hosts)
            for partition in "01":
                await sample.publish(b"a", partition=partition)
            await sample.has_checkpoints({"telemetry/$default/0": "0", "telemetry/$default/1": "0"})
            killed, survivor = hosts
            hosts[killed].kill()
            for partition in "01":
                await sample.publish(b"b", partition=partition)
            await owned_by([survivor] * 2)
            await sample.has_checkpoints({"telemetry/$default/0": "1", "telemetry/$default/1": "1"})


async def test_a_stop_interrupts_invocations_and_their_messages_are_delivered_again(
    sample: Sample,
) -> None:
    functions = ("plain", "session", "many")
    await sample.send(sample.plain_queue, {"seconds": 600})
    await sample.send("working", {"seconds": 600}, session_id="a")
    await sample.publish({"seconds": 600})
    async with sample.running(*functions, options=HostOptions(drain_seconds=0.1)) as app:
        await until(lambda: len(app.running["now"]) == len(functions), SECONDS_MAX)
        await sample.host.stop()
        assert app.running["now"] == []
    async with sample.running("many", options=HostOptions(drain_seconds=0.1)) as again:
        await note_of(again, "many", 1)


def retries(app: Any) -> list[int]:
    """The retry counts of the batch that fails."""
    return [entry["retry"] for entry in app.journal if entry.get("many") == [b'{"fail": true}']]


def check_events(journal: list[dict[str, Any]], bodies: list[bytes]) -> None:
    """Check the events of partition 1 and their metadata. They were sent in one batch, but a slow
    machine may receive the first before the others."""
    batches = [each for each in journal if "many" in each and each["many"][0] in bodies]
    assert [body for each in batches for body in each["many"]] == bodies
    assert [event.sequence_number for each in batches for event in each["events"]] == [0, 1, 2]
    for each in batches:
        metadata, numbers = each["metadata"], [event.sequence_number for event in each["events"]]
        assert metadata["SequenceNumberArray"] == numbers
        assert metadata["OffsetArray"] == [str(event.offset) for event in each["events"]]
        assert metadata["PropertiesArray"] == [{"number": n, "kind": "test"} for n in numbers]
        assert [of["SequenceNumber"] for of in metadata["SystemPropertiesArray"]] == numbers
        context = metadata["PartitionContext"]
        assert (context["PartitionId"], context["EventHubName"]) == ("1", "telemetry")
        assert context["ConsumerGroup"] == "$Default"


def events(*bodies: str) -> list[EventData]:
    return [EventData(body) for body in bodies]


def test_an_empty_string_is_lost_from_a_batch_as_in_the_real_host_but_no_byte_string() -> None:
    strings, binary = (Binding(EVENT_HUB_TRIGGER, "events", {"dataType": kind}) for kind in KINDS)
    texts = batch_invocation(strings, PLACE, events("a", "", "c"))
    assert (texts.trigger.type, texts.trigger.value.string) == ("collection_string", ["a", "c"])
    assert len(json.loads(texts.metadata["SystemPropertiesArray"].value)) == 3
    whole = batch_invocation(binary, PLACE, events("a", "", "c")).trigger
    assert (whole.type, whole.value.bytes) == ("collection_bytes", [b"a", b"", b"c"])


KINDS = ("", "BINARY")
PLACE = PartitionPlace("namespace", "hub", "$Default", "3")
