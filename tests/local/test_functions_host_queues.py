"""Queue triggers of the local functions host, and the death of its worker, with real queues."""

from __future__ import annotations

import asyncio
import base64
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from azure.core.exceptions import ResourceExistsError
from azure.storage.queue.aio import QueueClient

from local.azurite import Azurite
from local.clock import utc_now
from local.demo.hosted_app import hosted_app
from local.demo.system import APP_DIR, shrunk_host_json
from local.functions_host import FunctionsHost, HostOptions, InvocationCounts
from local.functions_host.functions import QUEUE_TRIGGER
from local.functions_host.queue_listener import QueueListener
from local.functions_host.worker_deaths import APART_MAX, WorkerDeaths
from local.twins.autoscaling import MemoryCapacityControl, MemoryStateStore
from shared.autoscaling.acting.actions import action_of
from shared.autoscaling.declaring import AppServicePlan
from shared.autoscaling.flows.poison import UNATTRIBUTED
from shared.autoscaling.messages import encode_action
from shared.autoscaling.plan_facts import PlanReading
from shared.autoscaling.state import ActionStatus
from shared.values.measurements import Metric, MetricValue
from shared.values.samples import encode_metrics, together
from tests.builders import desired, resource
from tests.local.polling import until
from tests.local.test_functions_host import SAMPLE_CONFIG, SECONDS_MAX, RunSample, run_sample
from tests.settings.test_settings import SINGLE

__all__ = ["run_sample"]

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


async def test_each_message_succeeds_or_reaches_the_poison_queue_unchanged_after_its_attempts(
    run_sample: RunSample,
) -> None:
    async with run_sample() as sample:
        fails = [await sample.give({"fail": True, "text": text}) for text in "ab"]
        for number in range(10):
            await sample.give({"number": number})
        await sample.work.send_message("not base64!")
        await sample.wait_for_length(sample.poison, 3)
        await sample.wait_for_length(sample.work, 0)
        poison = [message.content for message in await sample.poison.peek_messages(32)]
    assert set(poison) == {*fails, "not base64!"}
    assert sample.host.counts["work"] == InvocationCounts(invocations=16, failures=6)
    attempts = [each["dequeue_count"] for each in sample.journal if '"a"' in each["body"]]
    assert attempts == [1, 2, 3]


async def test_a_poison_queue_has_no_poison_queue(run_sample: RunSample) -> None:
    async with run_sample(**{"AzureWebJobs.bury.Disabled": "false"}) as sample:
        await sample.poison.create_queue()
        await sample.poison.send_message(base64.b64encode(b"bad").decode())
        await until(lambda: "bury" in sample.host.counts, SECONDS_MAX)
        assert await sample.length(sample.poison) == 1
    assert sample.host.counts["bury"] == InvocationCounts(invocations=1, failures=1)


async def test_concurrency_stays_within_batch_size_and_threshold(run_sample: RunSample) -> None:
    small = replace(SAMPLE_CONFIG.queues, batch_size=4, new_batch_threshold=2)
    async with run_sample(small, orders=[{"seconds": 0.2}] * 12) as sample:
        await sample.wait_for_length(sample.work, 0)
        assert 4 <= sample.running["most"] <= 6


async def test_the_lease_is_renewed_while_the_function_runs(run_sample: RunSample) -> None:
    async with run_sample(options=HostOptions(lease_seconds=2)) as sample:
        await sample.give({"seconds": 2.5})
        await sample.wait_for_length(sample.work, 0)
    assert [each["dequeue_count"] for each in sample.journal] == [1]


# --- the worker dies ------------------------------------------------------------------------------


async def test_a_message_in_work_is_redelivered_and_the_third_death_in_a_row_ends_the_host(
    run_sample: RunSample,
) -> None:
    async with run_sample(orders=[{"seconds": 60}]) as sample:
        failed = asyncio.create_task(sample.host.failed())
        for death in (1, 2, 3):
            await until(lambda: sample.running["now"] == 1, SECONDS_MAX)
            assert not failed.done()
            await sample.host.kill_worker()
            await until(lambda: counts(sample.host, "work").failures == death, SECONDS_MAX)  # noqa: B023
        assert await failed == "the worker has died 3 times in a row"
    assert [each["dequeue_count"] for each in sample.journal] == [1, 2, 3]


def counts(host: FunctionsHost, name: str) -> InvocationCounts:
    return host.counts.get(name, InvocationCounts())


def test_only_deaths_within_half_an_hour_of_one_another_end_the_host() -> None:
    deaths = WorkerDeaths()
    assert not deaths.end_the_host(NOW)
    assert not deaths.end_the_host(NOW + APART_MAX)
    late = NOW + 2 * APART_MAX + timedelta(seconds=1)
    assert not deaths.end_the_host(late)
    assert not deaths.end_the_host(late + APART_MAX)
    assert deaths.end_the_host(late + 2 * APART_MAX)


class DiesAfterTheChange(MemoryCapacityControl):
    """Changes the capacity. The first time, no answer arrives."""

    changed = False

    async def change(self, target: AppServicePlan, capacity: int, read: PlanReading) -> int | None:
        after = await super().change(target, capacity, read)
        if not self.changed:
            self.changed = True
            await asyncio.Event().wait()
        return after


async def test_an_action_that_a_death_interrupts_after_the_change_is_confirmed_and_not_repeated(
    azurite: Azurite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scaling_rules.resources", lambda _settings: [resource()])
    async with QueueClient.from_connection_string(azurite.connection_string, "actions") as queue:
        with suppress(ResourceExistsError):
            await queue.create_queue()
        await queue.clear_messages()
        host = FunctionsHost(
            APP_DIR,
            settings={**SINGLE, "AzureWebJobsStorage": azurite.connection_string},
            config=shrunk_host_json(),
            listeners={QUEUE_TRIGGER: QueueListener},
        )
        async with hosted_app(host) as app:
            store, control = MemoryStateStore(utc_now), DiesAfterTheChange(utc_now, {"plan-1": 2})
            app.scaling.store, app.scaling.control = store, control
            pending = desired(requested_at=utc_now(), sent_at=utc_now())
            snapshot = await store.load("plan-1")
            await store.commit(snapshot, snapshot.state.with_desired(pending), [])
            await queue.send_message(encode_action(action_of("plan-1", pending)))
            await until(lambda: control.changed, SECONDS_MAX)
            await host.kill_worker()
            await until(lambda: counts(host, "scaler").invocations == 2, SECONDS_MAX)
            settled = (await store.load("plan-1")).state.desired
    assert host.counts["scaler"].failures == 1
    assert control.changes == [("plan-1", pending.target)]
    assert settled is not None
    assert (settled.status, settled.epoch) == (ActionStatus.CONFIRMED, pending.epoch)


async def test_only_the_failing_part_of_a_message_for_many_resources_becomes_poison(
    azurite: Azurite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scaling_rules.resources", lambda _settings: [resource()])
    config = shrunk_host_json()
    host = FunctionsHost(
        APP_DIR,
        settings={**SINGLE, "AzureWebJobsStorage": azurite.connection_string},
        config=config,
        listeners={QUEUE_TRIGGER: QueueListener},
    )
    sample = MetricValue(utc_now(), 5)
    (bad,) = encode_metrics([Metric("plan-9", "backlog", sample)])
    (good,) = encode_metrics([Metric("plan-1", "backlog", sample)])
    async with (
        QueueClient.from_connection_string(azurite.connection_string, "metrics") as queue,
        hosted_app(host) as app,
    ):
        with suppress(ResourceExistsError):
            await queue.create_queue()
        await queue.clear_messages()
        app.scaling.store = store = MemoryStateStore(utc_now)
        app.scaling.control = MemoryCapacityControl(utc_now, {"plan-1": 2})
        for text in together([good, bad], 2):
            await queue.send_message(text)
        await until(lambda: counts(host, "metrics_poison").invocations == 1, SECONDS_MAX)
        (line,) = await store.log(UNATTRIBUTED)
        assert line.body == bad
        stored = (await store.load("plan-1")).state.histories["backlog"]
        assert [each.value for each in stored.samples] == [5]
    attempts = config.queues.max_dequeue_count
    assert counts(host, "scaling_logic") == InvocationCounts(attempts + 1, attempts)
