"""The functions with mocked bindings: what each takes from its trigger and hands to its output."""

from __future__ import annotations

import importlib
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from types import ModuleType
from typing import Any
from unittest.mock import Mock

import azure.functions as func
import pytest

from shared.adapters.memory.autoscaling import MemoryCapacityControl, MemoryReader, MemoryStateStore
from shared.autoscaling import ServiceBusSubscription
from shared.autoscaling.errors import BadMessage
from shared.autoscaling.flows.poison import UNATTRIBUTED
from shared.autoscaling.measurements import CAPACITY_METRIC, Metric, MetricValue
from shared.autoscaling.messages import decode_action, decode_metric, encode_metric
from shared.settings import SettingsError
from tests.settings.test_settings import SINGLE

ENVIRON = {**SINGLE, "AzureWebJobsStorage": "UseDevelopmentStorage=true"}
BACKLOG = "orders-billing-backlog"
NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


class App:
    """function_app, freshly imported, on memory twins."""

    def __init__(self, module: ModuleType) -> None:
        self.now = NOW
        self.store = MemoryStateStore(lambda: self.now)
        self.control = MemoryCapacityControl(lambda: self.now, {"plan-1": 2})
        source = ServiceBusSubscription("orders", "billing")
        self.reader = MemoryReader(lambda: self.now, {source: 500.0}, self.control)
        self.module = module
        scaling = module.app.scaling
        scaling.store, scaling.control, scaling.reader = self.store, self.control, self.reader

    async def call(self, name: str, *bindings: Any) -> None:
        await getattr(self.module, name)(*bindings)

    async def tick(self) -> list[str]:
        """One collection, and the decision on each of its metrics; the actions ordered."""
        collected: Mock = Mock(spec=func.Out)
        await self.call("metric_collector", Mock(spec=func.TimerRequest), collected)
        ordered = []
        for body in collected.set.call_args.args[0]:
            actions = Mock(spec=func.Out)
            await self.call("scaling_logic", message(body), actions)
            ordered += [call.args[0] for call in actions.set.call_args_list]
        self.now += timedelta(seconds=15)
        return ordered


def message(body: str) -> Mock:
    queued = Mock(spec=func.QueueMessage)
    queued.get_body.return_value = body.encode()
    queued.id, queued.insertion_time = "message-1", NOW
    return queued


@pytest.fixture
async def app(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[App]:
    for key, value in ENVIRON.items():
        monkeypatch.setenv(key, value)
    sys.modules.pop("function_app", None)
    module = importlib.import_module("function_app")
    opened = module.app
    yield App(module)
    sys.modules.pop("function_app", None)
    await opened.close()


async def test_metric_collector_puts_one_message_per_metric(app: App) -> None:
    metrics = Mock(spec=func.Out)
    await app.call("metric_collector", Mock(spec=func.TimerRequest), metrics)
    sent = [decode_metric(body) for body in metrics.set.call_args.args[0]]
    assert sent == [
        Metric("plan-1", CAPACITY_METRIC, MetricValue(NOW, 2)),
        Metric("plan-1", BACKLOG, MetricValue(NOW, 500)),
    ]


async def test_from_the_first_sample_to_the_changed_plan(app: App) -> None:
    ordered = [action for _ in range(5) for action in await app.tick()]
    (action,) = ordered
    assert (decode_action(action).target, decode_action(action).epoch) == (3, 1)
    await app.call("scaler", message(action))
    await app.call("scaler", message(action))  # delivered twice
    assert app.control.changes == [("plan-1", 3)]


async def test_reconciler_sends_a_lost_action_again(app: App) -> None:
    (action,) = [action for _ in range(5) for action in await app.tick()]
    app.now += timedelta(seconds=60)
    actions = Mock(spec=func.Out)
    await app.call("reconciler", Mock(spec=func.TimerRequest), actions)
    actions.set.assert_called_once_with([action])


async def test_scaling_logic_raises_what_can_never_be_processed(app: App) -> None:
    with pytest.raises(BadMessage):
        await app.call("scaling_logic", message("%%%"), Mock(spec=func.Out))


async def test_poison_messages_are_written_down(app: App) -> None:
    await app.call("metrics_poison", message("%%%"))
    await app.call("actions_poison", message("{}"))
    lines = await app.store.log(UNATTRIBUTED)
    assert len(lines) == 1  # both bore the same message id
    body = encode_metric(Metric("plan-1", BACKLOG, MetricValue(NOW, 1)))
    await app.call("metrics_poison", message(body))
    assert [line.body for line in await app.store.log("plan-1")] == [body]


async def test_log_retention_deletes_what_is_too_old(app: App) -> None:
    await app.tick()
    app.now += timedelta(days=15)
    await app.call("log_retention", Mock(spec=func.TimerRequest))
    assert await app.store.log("plan-1") == []


async def test_wrong_settings_and_rules_stop_the_app_with_one_message(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WindowSeconds", "ten")
    monkeypatch.delenv("AzureWebJobsStorage")
    monkeypatch.setenv("ThresholdUp", "5")
    monkeypatch.setenv("MinimumCapacity", "9")
    monkeypatch.setenv("MaximumCapacity", "3")
    with pytest.raises(SettingsError) as raised:
        importlib.reload(app.module)
    assert raised.value.problems == (
        "WindowSeconds = 'ten': must be a number",
        "MaximumCapacity = 3: must be at least MinimumCapacity = 9",
        "ThresholdDown = 10: must be below ThresholdUp = 5",
        "AzureWebJobsStorage = '': set a storage connection string or, for managed identity, "
        "AzureWebJobsStorage__accountName, or both AzureWebJobsStorage__queueServiceUri and "
        "AzureWebJobsStorage__tableServiceUri",
    )


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        (lambda _: None, "scaling_rules.resources() answered a NoneType: a list of Resource"),
        (lambda settings: settings.nonsense, "scaling_rules.py: AttributeError: "),
    ],
)
async def test_rules_that_declare_nothing_or_fail_are_named(
    app: App, monkeypatch: pytest.MonkeyPatch, rules: Any, said: str
) -> None:
    monkeypatch.setattr("scaling_rules.resources", rules)
    with pytest.raises(SettingsError) as raised:
        importlib.reload(app.module)
    (problem,) = raised.value.problems
    assert problem.startswith(said)


async def test_a_setting_that_nobody_reads_is_logged_at_start(
    app: App, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("QueueAgeLmit", "3")
    importlib.reload(app.module)
    await app.call("metric_collector", Mock(spec=func.TimerRequest), Mock(spec=func.Out))
    (line,) = [each for each in caplog.records if getattr(each, "action", "") == "setting_unknown"]
    assert "setting QueueAgeLmit: nobody reads it; is AgeLimitMinutes meant?" in line.message
