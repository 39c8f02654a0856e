"""The functions of autoscaling with mocked bindings: their triggers and their outputs."""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import sys
import traceback
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from types import ModuleType
from typing import Any
from unittest.mock import AsyncMock, Mock

import azure.functions as func
import pytest

from local.twins.autoscaling import (
    MemoryCapacityControl,
    MemoryQueueSender,
    MemoryReader,
    MemoryStateStore,
)
from shared.autoscaling import ServiceBusSubscription, TargetTracking, Threshold
from shared.autoscaling.deciding.decide import EntryKind
from shared.autoscaling.declaring import AppServicePlan
from shared.autoscaling.flows.poison import UNATTRIBUTED
from shared.autoscaling.flows.scaling_logic import process_message
from shared.autoscaling.messages import Samples, decode_action, decode_samples, encode_action
from shared.autoscaling.plan_facts import PlanReading
from shared.autoscaling.ports import Snapshot
from shared.autoscaling.state import RulesInForce
from shared.settings import SettingsError
from shared.values.measurements import Metric, MetricValue
from shared.values.samples import together
from shared.values.urgency import urgent_seconds
from tests.bindings.test_ingestion_functions import imported, names
from tests.builders import encode_metric, resource
from tests.settings.test_settings import SINGLE

ENVIRON = {**SINGLE, "AzureWebJobsStorage": "UseDevelopmentStorage=true"}
BACKLOG = "orders-billing-backlog"
NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


class App:
    """function_app, freshly imported, with in-memory adapters."""

    def __init__(self, module: ModuleType) -> None:
        self.now = NOW
        self.store = MemoryStateStore(lambda: self.now)
        self.control = MemoryCapacityControl(lambda: self.now, {"plan-1": 2})
        source = ServiceBusSubscription("orders", "billing")
        self.reader = MemoryReader(lambda: self.now, {source: 500.0}, self.control)
        self.module = module
        scaling = module.app.scaling
        self.metrics, self.actions, self.samples = (MemoryQueueSender() for _ in range(3))
        scaling.metrics_queue, scaling.actions_queue = self.metrics, self.actions
        scaling.store, scaling.control, scaling.reader = self.store, self.control, self.reader
        self.trends = module.app.nightly.trends = Mock(delete_old=AsyncMock())

    async def call(self, name: str, *bindings: Any) -> None:
        await getattr(self.module, name)(*bindings)

    async def tick(self) -> list[str]:
        """Collect the metrics once and decide on each. Returns the scale actions."""
        await self.call("metric_collector", Mock(spec=func.TimerRequest))
        for body in taken(self.metrics):
            await self.call("scaling_logic", message(body))
        self.now += timedelta(seconds=15)
        return taken(self.actions)


def taken(queue: MemoryQueueSender) -> list[str]:
    """The messages that were sent since the last call."""
    texts, queue.texts = queue.texts, []
    return texts


def message(body: str) -> Mock:
    queued = Mock(spec=func.QueueMessage)
    queued.get_body.return_value = body.encode()
    queued.id, queued.insertion_time = "message-1", NOW
    return queued


@pytest.fixture
async def app(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[App]:
    module = imported(monkeypatch, ENVIRON)
    opened = module.app
    yield App(module)
    sys.modules.pop("function_app", None)
    for each in {opened, module.app}:  # a test may import the module again
        await each.close()


async def test_samples_lead_to_one_change_of_the_plan_even_if_the_action_is_redelivered(
    app: App,
) -> None:
    (action,) = [action for _ in range(5) for action in await app.tick()]
    assert (decode_action(action).target, decode_action(action).epoch) == (3, 1)
    await app.call("scaler", message(action))
    await app.call("scaler", message(action))  # delivered twice
    assert app.control.changes == [("plan-1", 3)]


async def test_a_plan_is_read_once_a_minute_and_its_metrics_in_each_run(app: App) -> None:
    seen = []
    for _ in range(5):
        await app.call("metric_collector", Mock(spec=func.TimerRequest))
        seen += [len(decode_samples(body).metrics) for body in taken(app.metrics)]
        app.now += timedelta(seconds=15)
    assert seen == [2, 1, 1, 1, 2]


async def test_requests_are_urgent_while_an_order_is_carried_out_and_routine_afterwards(
    app: App,
) -> None:
    (action,) = [action for _ in range(5) for action in await app.tick()]
    urgencies, read, change = list[float](), app.control.read, app.control.change
    limit = app.module.settings.source_timeout_seconds

    async def noted(target: AppServicePlan) -> PlanReading:
        urgencies.append(urgent_seconds.get())
        return await read(target)

    async def accepted(target: AppServicePlan, capacity: int, read: PlanReading) -> None:
        urgencies.append(urgent_seconds.get())
        await change(target, capacity, read)

    app.control.read = noted  # type: ignore[method-assign]
    app.control.change = accepted  # type: ignore[method-assign]
    timer = Mock(spec=func.TimerRequest)
    for name, given, expected in (
        ("reconciler", timer, [0.8 * limit]),
        ("scaler", message(action), [60, 60]),
        ("reconciler", timer, [0.8 * limit]),  # its reading confirms the order
        ("reconciler", timer, [0]),
        ("metric_collector", timer, [0]),
    ):
        app.now += timedelta(seconds=60)
        urgencies.clear()
        await app.call(name, given)
        assert urgencies == expected, name


async def test_reconciler_sends_a_lost_action_again(app: App) -> None:
    (action,) = [action for _ in range(5) for action in await app.tick()]
    app.now += timedelta(seconds=60)
    await app.call("reconciler", Mock(spec=func.TimerRequest))
    assert app.actions.texts == [action]


async def test_a_manual_change_is_noticed_by_the_message_that_shows_it(app: App) -> None:
    (action,) = [action for _ in range(5) for action in await app.tick()]
    await app.call("scaler", message(action))
    app.control.capacities["plan-1"] = 5
    app.now += timedelta(seconds=60)
    await app.tick()
    assert EntryKind.MANUAL_CHANGE in [line.kind for line in await app.store.log("plan-1")]


async def test_messages_that_wait_for_plans_leave_room_for_others(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    [_] = [action for _ in range(5) for action in await app.tick()]
    bodies, reads = list[str](), list[AppServicePlan]()
    for _ in range(12):
        app.now += timedelta(seconds=15)
        await app.call("metric_collector", Mock(spec=func.TimerRequest))
        bodies += taken(app.metrics)
    answers, read = asyncio.Event(), app.control.read

    async def slow(target: AppServicePlan) -> PlanReading:
        reads.append(target)
        await answers.wait()
        return await read(target)

    monkeypatch.setattr(app.control, "read", slow)
    calls = [asyncio.create_task(app.call("scaling_logic", message(each))) for each in bodies]
    done, waiting = await asyncio.wait(calls, timeout=0.5)
    assert (len(done), len(waiting), len(reads)) == (4, 8, 8)
    answers.set()
    await asyncio.gather(*calls)


async def test_what_a_hanging_queue_did_not_take_is_sent_by_the_next_run(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else limits the time of a function before the host replaces its worker."""

    class Hanging(MemoryQueueSender):
        async def send_texts(self, _texts: Sequence[str]) -> None:
            await asyncio.sleep(5)
            raise AssertionError("nothing limits the time")

    async def hangs_and_sends_later(queue: str, name: str, binding: Any) -> list[str]:
        scaling = app.module.app.scaling
        with monkeypatch.context() as patch:
            patch.setattr(scaling, queue, Hanging())
            with pytest.raises(TimeoutError):
                await app.call(name, binding)
        app.now += timedelta(seconds=60)
        await app.call(name, binding)
        return taken(getattr(scaling, queue))

    monkeypatch.setattr(app.module, "SEND_SECONDS_MAX", 0.01)
    for _ in range(4):
        await app.tick()
    timer = Mock(spec=func.TimerRequest)
    assert len(await hangs_and_sends_later("metrics_queue", "metric_collector", timer)) == 1
    backlog = message(encode_metric(Metric("plan-1", BACKLOG, MetricValue(app.now, 500))))
    (action,) = await hangs_and_sends_later("actions_queue", "scaling_logic", backlog)
    app.now += timedelta(seconds=60)
    assert await hangs_and_sends_later("actions_queue", "reconciler", timer) == [action]


async def test_the_functions_act_only_while_the_version_of_their_rules_is_in_force(
    app: App,
) -> None:
    for _ in range(5):
        await app.tick()
    snapshot = await app.store.load("plan-1")
    rules, version = snapshot.state.rules, app.module.version
    assert rules is not None
    assert rules.version == version
    newer = RulesInForce("newer", app.now, (version,))
    await app.store.commit(snapshot, snapshot.state.with_rules(newer))
    app.now += timedelta(seconds=60)
    assert await app.tick() == []
    await app.call("reconciler", Mock(spec=func.TimerRequest))
    assert app.actions.texts == []


async def test_poison_messages_are_recorded_once_in_the_decision_log(app: App) -> None:
    await app.call("metrics_poison", message("%%%"))
    await app.call("actions_poison", message("{}"))
    lines = await app.store.log(UNATTRIBUTED)
    assert len(lines) == 1  # both messages have the same id
    body = encode_metric(Metric("plan-1", BACKLOG, MetricValue(NOW, 1)))
    await app.call("metrics_poison", message(body))
    assert [line.body for line in await app.store.log("plan-1")] == [body]


# --- one message for many resources ---

PLANS = [f"plan-{number}" for number in range(1, 6)]


@pytest.fixture
async def fleet(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[App]:
    """Five plans, whose samples travel together."""
    source = ServiceBusSubscription("orders", "billing")
    found = [resource(name, metrics={BACKLOG: source}, policy=RULE) for name in PLANS]
    monkeypatch.setattr("scaling_rules.resources", lambda _settings: found)
    module = imported(monkeypatch, {**ENVIRON, "ResourcesPerMessage": "100"})
    fleet = App(module)
    fleet.control.capacities = dict.fromkeys(PLANS, 2)
    yield fleet
    sys.modules.pop("function_app", None)
    await module.app.close()


RULE = Threshold(BACKLOG, 100, 10)


async def collected(fleet: App) -> str:
    """The message of the tick in which the fifth sample leads to decisions."""
    for _ in range(4):
        assert await fleet.tick() == []
    await fleet.call("metric_collector", Mock(spec=func.TimerRequest))
    (body,) = taken(fleet.metrics)
    return body


async def test_one_message_leads_to_one_decision_for_each_of_its_resources(fleet: App) -> None:
    await fleet.call("scaling_logic", message(await collected(fleet)))
    actions = [decode_action(text) for text in taken(fleet.actions)]
    assert {(each.resource_name, each.target) for each in actions} == {(n, 3) for n in PLANS}
    assert len(actions) == len(PLANS)
    for action in actions:
        await fleet.call("scaler", message(encode_action(action)))
    assert fleet.control.capacities == dict.fromkeys(PLANS, 3)


async def test_the_samples_of_a_resource_that_fails_are_sent_again_alone(
    fleet: App, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    body, load = await collected(fleet), fleet.store.load

    async def failing(name: str) -> Snapshot:
        if name == "plan-3":
            raise OSError("503")
        return await load(name)

    with monkeypatch.context() as patch:
        patch.setattr(fleet.store, "load", failing)
        await fleet.call("scaling_logic", message(body))
    first = {decode_action(text).resource_name for text in taken(fleet.actions)}
    assert first == {*PLANS} - {"plan-3"}
    (alone,) = taken(fleet.metrics)
    assert decode_samples(alone).resource_name == "plan-3"
    assert alone in body
    assert "[sent_alone] all: some messages failed and are sent again, each alone: 1 of 5" in (
        caplog.text
    )
    assert "OSError: 503" in caplog.text
    await fleet.call("scaling_logic", message(alone))
    (action,) = taken(fleet.actions)
    assert decode_action(action).resource_name == "plan-3"
    assert fleet.metrics.texts == []


@pytest.mark.parametrize("queue", ["metrics", "actions"])
async def test_a_message_whose_outcome_could_not_be_sent_is_delivered_again_without_harm(
    fleet: App, monkeypatch: pytest.MonkeyPatch, queue: str
) -> None:
    bad = encode_metric(Metric("plan-9", BACKLOG, MetricValue(NOW, 1)))
    body = (await collected(fleet)).replace('"messages": [', f'"messages": [{bad},')
    sender = getattr(fleet, queue)
    with monkeypatch.context() as patch:
        patch.setattr(sender, "send_texts", AsyncMock(side_effect=OSError("503")))
        with pytest.raises(OSError, match="503"):
            await fleet.call("scaling_logic", message(body))
    fleet.metrics.texts.clear()
    log = [len(await fleet.store.log(name)) for name in PLANS]
    await fleet.call("scaling_logic", message(body))
    assert fleet.metrics.texts == [bad]
    actions = [decode_action(text) for text in taken(fleet.actions)]
    assert {each.resource_name for each in actions} == {*PLANS}
    assert {each.epoch for each in actions} == {1}
    assert [len(await fleet.store.log(name)) for name in PLANS] == log


async def test_a_poison_message_for_many_resources_is_told_in_the_log_of_each(fleet: App) -> None:
    body = await collected(fleet)
    await fleet.call("metrics_poison", message(body))
    for name in PLANS:
        (line,) = [line for line in await fleet.store.log(name) if line.kind is EntryKind.POISON]
        assert decode_samples(line.body).resource_name == name
        assert "processing it failed each time" in line.reason
    bad = json.dumps({"schema_version": 3, "messages": 5})
    await fleet.call("metrics_poison", message(bad))
    (line,) = await fleet.store.log(UNATTRIBUTED)
    assert "messages is 5, must be a list of 1 to 500 messages" in line.reason
    await fleet.call("samples_poison", message(body))
    assert "only the app itself sends 3" in (await fleet.store.log(UNATTRIBUTED))[0].reason


async def test_a_resource_that_does_not_end_is_left_to_a_message_of_its_own() -> None:
    texts = [encode_metric(Metric(name, "b", MetricValue(NOW, 1))) for name in PLANS * 9]
    hanging, done = set[str](), list[str]()

    async def process(samples: Samples) -> str | None:
        if samples.resource_name == "plan-1":
            hanging.add(samples.resource_name)
            await asyncio.Event().wait()
        done.append(samples.resource_name)
        return None

    (body,) = together(texts, 100)
    actions, failed = await process_message(body, process, 0.1)
    assert (actions, failed) == ([], texts[::5])
    assert sorted(done) == sorted(PLANS[1:] * 9)


async def test_log_retention_deletes_old_entries_and_old_trends(app: App) -> None:
    await app.tick()
    app.now += timedelta(days=15)
    await app.call("log_retention", Mock(spec=func.TimerRequest))
    assert await app.store.log("plan-1") == []
    app.trends.delete_old.assert_awaited_once_with()


def problems_of(module: ModuleType) -> Sequence[str]:
    """The problems of an app that only tells them: no other function is registered."""
    assert names(module) == {"settings_check", "settings_problems"}
    failure: SettingsError = module.failure
    return failure.problems


async def test_wrong_settings_leave_one_function_that_tells_them_and_one_that_fails(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WindowSeconds", "ten")
    module = importlib.reload(app.module)
    answer = await module.settings_problems(func.HttpRequest("GET", "https://x/", body=b""))
    assert answer.status_code == 503
    assert json.loads(answer.get_body())["problems"] == ["WindowSeconds = 'ten': must be a number"]
    lengths = set[int]()
    for _ in range(3):
        with pytest.raises(SettingsError, match="WindowSeconds = 'ten': must be a number") as told:
            await module.settings_check(Mock(spec=func.TimerRequest))
        lengths.add(len(traceback.format_exception(told.value)))
    assert len(lengths) == 1  # each failure is logged with its own traceback only


async def test_all_problems_of_settings_and_rules_are_told_together(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WindowSeconds", "ten")
    monkeypatch.delenv("AzureWebJobsStorage")
    monkeypatch.setenv("ThresholdUp", "5")
    monkeypatch.setenv("MinimumCapacity", "9")
    monkeypatch.setenv("MaximumCapacity", "3")
    module = importlib.reload(app.module)
    assert problems_of(module) == (
        "WindowSeconds = 'ten': must be a number",
        "MaximumCapacity = 3: must be at least MinimumCapacity = 9",
        "ThresholdDown = 10: must be below ThresholdUp = 5",
        "AzureWebJobsStorage = '': set a storage connection string or, for managed identity, "
        "AzureWebJobsStorage__accountName, or AzureWebJobsStorage__blobServiceUri and "
        "AzureWebJobsStorage__queueServiceUri and AzureWebJobsStorage__tableServiceUri",
    )


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        (lambda _: None, "scaling_rules.resources() returned a NoneType: must return a list"),
        (lambda settings: settings.nonsense, "scaling_rules.py: AttributeError: "),
    ],
)
async def test_an_error_describes_rules_that_declare_nothing_or_fail(
    app: App, monkeypatch: pytest.MonkeyPatch, rules: Any, said: str
) -> None:
    monkeypatch.setattr("scaling_rules.resources", rules)
    (problem,) = problems_of(importlib.reload(app.module))
    assert problem.startswith(said)


async def test_a_total_in_a_policy_for_values_per_instance_is_logged_at_start(
    app: App, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    declared = resource(policy=TargetTracking("backlog", 100))
    monkeypatch.setattr("scaling_rules.resources", lambda _: [declared])
    importlib.reload(app.module)
    await App(app.module).call("metric_collector", Mock(spec=func.TimerRequest))
    (line,) = [each for each in caplog.records if getattr(each, "action", "") == "rule_doubtful"]
    assert "Use ValuePerInstance('backlog', …) instead of TargetTracking" in line.message


async def test_the_clients_log_warnings_and_no_error_that_the_app_logs_itself(app: App) -> None:
    for name in ("azure", "azure.eventhub", "azure.servicebus"):
        logging.getLogger(name).setLevel(logging.NOTSET)
    importlib.reload(app.module)
    levels = {
        name: logging.getLogger(name).getEffectiveLevel()
        for name in ("azure.core", "azure.eventhub", "azure.eventhub.aio", "azure.servicebus._x")
    }
    assert levels == {
        "azure.core": logging.WARNING,
        "azure.eventhub": logging.CRITICAL,
        "azure.eventhub.aio": logging.CRITICAL,
        "azure.servicebus._x": logging.CRITICAL,
    }
