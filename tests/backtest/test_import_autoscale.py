"""Rules converted from an autoscale setting of Azure Monitor decide like the setting."""

from __future__ import annotations

import copy
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from backtest.autoscale_setting import convert
from backtest.autoscale_week import Begins, Holds, week
from backtest.cli import main
from backtest.errors import BacktestError
from backtest.import_autoscale import written
from shared.autoscaling import (
    AzureMonitorMetric,
    Resource,
    Schedule,
    ServiceBusQueue,
    ServiceBusSubscription,
    StorageQueue,
)
from shared.autoscaling.deciding.decide import decide
from shared.autoscaling.state import ScalingState
from shared.settings import load
from shared.values.measurements import CAPACITY_METRIC, MetricValue, Window

EXAMPLE = Path(__file__).parent / "data" / "autoscale_setting.json"
OFFICE = datetime(2026, 11, 18, 10, 0, tzinfo=UTC)  # a Wednesday, 11:00 in Berlin
NIGHT = datetime(2026, 11, 18, 20, 0, tzinfo=UTC)
SALE = datetime(2026, 11, 28, 12, 0, tzinfo=UTC)


def example() -> Any:
    return json.loads(EXAMPLE.read_text())


def loaded(document: Any) -> Resource:
    names: dict[str, Any] = {}
    exec(written(convert(document)), names)
    (resource,) = names["resources"](load({}))
    assert isinstance(resource, Resource)
    return resource


def decided(now: datetime, capacity: int, document: Any = None, **values: float) -> int | None:
    """The decision after ten minutes of constant values."""
    times = [now - timedelta(seconds=15 * n) for n in range(40, -1, -1)]
    series = {**values, CAPACITY_METRIC: float(capacity)}
    histories = {
        name.replace("_", "-"): Window(tuple(MetricValue(t, value) for t in times))
        for name, value in series.items()
    }
    return decide(loaded(document or example()), ScalingState(histories), now).desired


@pytest.mark.parametrize(
    ("now", "capacity", "values", "desired"),
    [
        (OFFICE, 4, {"my_bus_activemessages": 500}, 6),  # 125 for each instance
        (OFFICE, 4, {"my_bus_activemessages": 5}, 3),
        (NIGHT, 3, {"workers_cpupercentage": 80, "jobs_approximatemessagecount": 0}, 5),
        (NIGHT, 3, {"workers_cpupercentage": 20, "jobs_approximatemessagecount": 4}, 1),
        (SALE, 3, {"my_bus_activemessages": 5}, 8),
    ],
)
def test_the_converted_rules_decide_like_the_setting(
    now: datetime, capacity: int, values: dict[str, float], desired: int
) -> None:
    known = {
        "my_bus_activemessages": 50.0,
        "workers_cpupercentage": 50.0,
        "jobs_approximatemessagecount": 50.0,
    }
    assert decided(now, capacity, **{**known, **values}) == desired


DAY_NAMES = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
WEEK = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
PLAN = example()["properties"]["targetResourceUri"]
BUS = (
    "/subscriptions/00000000-0000-0000-0000-000000000001/resourceGroups/my-group/providers"
    "/Microsoft.ServiceBus/namespaces/my-bus"
)
ORDERS = {"DimensionName": "EntityName", "Operator": "Equals", "Values": ["orders"]}
ANY, TWO = ({**ORDERS, "Values": values} for values in (["*"], ["a", "it's"]))
IS_ORDERS, ONE_OF_TWO = "EntityName eq 'orders'", "EntityName eq 'a' or EntityName eq 'it''s'"
PULLED = AzureMonitorMetric(BUS, "IncomingMessages", filter=IS_ORDERS)
TOPIC, IS_T = f"{BUS}/topics/t", "EntityName eq 't'"
ACCOUNT = BUS.replace("ServiceBus/namespaces/my-bus", "Storage/storageAccounts/mystore")
QUEUES = f"{ACCOUNT}/services/queue/queues"


@pytest.mark.parametrize(
    ("metric", "uri", "dimensions", "source"),
    [
        ("ActiveMessages", BUS, [ORDERS], ServiceBusQueue("orders")),
        ("ScheduledMessages", f"{BUS}/queues/orders", [], ServiceBusQueue("orders", "scheduled")),
        ("ActiveMessageCount", f"{TOPIC}/subscriptions/eu", [], ServiceBusSubscription("t", "eu")),
        ("ActiveMessageCount", TOPIC, [], AzureMonitorMetric(BUS, "ActiveMessages", filter=IS_T)),
        ("MessageCount", TOPIC, [], AzureMonitorMetric(BUS, "Messages", filter=IS_T)),
        ("ActiveMessages", BUS, [ANY], AzureMonitorMetric(BUS, "ActiveMessages")),
        ("ApproximateMessageCount", f"{QUEUES}/jobs", [], StorageQueue("jobs")),
        ("messagecount", f"{ACCOUNT}/queueServices/default/queues/jobs", [], StorageQueue("jobs")),
        ("Transactions", f"{QUEUES}/q", [], AzureMonitorMetric(f"{QUEUES}/q", "Transactions")),
        (
            "ActiveMessages",
            BUS,
            [ORDERS, {**ORDERS, "DimensionName": "Zone", "Values": ["1"]}],
            AzureMonitorMetric(BUS, "ActiveMessages", filter=f"{IS_ORDERS} and Zone eq '1'"),
        ),
        ("IncomingMessages", BUS, [ORDERS], PULLED),
        (
            "ActiveMessages",
            BUS,
            [TWO],
            AzureMonitorMetric(BUS, "ActiveMessages", filter=ONE_OF_TWO),
        ),
    ],
)
@pytest.mark.parametrize("key", ["dimensions", "Dimensions"])  # the portal writes a capital
def test_a_metric_becomes_the_source_that_counts_the_same(
    metric: str, uri: str, dimensions: list[Any], source: Any, key: str
) -> None:
    document = setting(trigger(metric, uri, **{key: dimensions}))
    assert set(convert(document).metrics.values()) == {source}
    assert loaded(document).metrics == convert(document).metrics


def test_equal_names_in_two_namespaces_or_accounts_are_two_metrics() -> None:
    """Otherwise, the second backlog is never read, and does not prevent scale-in."""
    jobs = f"{QUEUES}/orders"
    document = setting(
        *[
            trigger("ActiveMessages", uri, dimensions=[ORDERS])
            for uri in (BUS, f"{BUS}-2", BUS.upper())
        ],
        *[trigger("ApproximateMessageCount", uri) for uri in (jobs, jobs.replace("my", "your"))],
    )
    converted = convert(document)
    assert list(converted.metrics.values()) == [
        ServiceBusQueue("orders"),
        ServiceBusQueue("orders", connection="ServiceBusConnection2"),
        StorageQueue("orders"),
        StorageQueue("orders", connection="AzureWebJobsStorage2"),
    ]
    for text in ("my-bus-2 is read directly through ServiceBusConnection2", "account yourstore"):
        assert text in " ".join(converted.notes)
    assert loaded(document).metrics == converted.metrics


@pytest.mark.parametrize(
    "namespace", ["azure.applicationinsights", "Microsoft.Web/serverFarms", ""]
)
def test_the_namespace_of_a_custom_metric_is_kept(namespace: str) -> None:
    converted = convert(setting(trigger("waiting", PLAN, metricNamespace=namespace)))
    kept = "" if namespace.startswith("Microsoft") else namespace
    assert [*converted.metrics.values()] == [AzureMonitorMetric(PLAN, "waiting", namespace=kept)]


@pytest.mark.parametrize(
    ("metric", "uri", "divides", "per_instance", "note"),
    [
        ("MessageCount", f"{BUS}/queues/orders", False, True, "of orders are per instance"),
        ("ActiveMessageCount", f"{TOPIC}/subscriptions/eu", None, True, "of t are per instance"),
        ("ActiveMessageCount", TOPIC, None, True, ""),
        ("ApproximateMessageCount", f"{QUEUES}/q", None, True, "is divided by"),
        ("ActiveMessages", BUS, None, False, "thresholds of orders are totals"),
    ],
)
def test_the_length_of_a_queue_is_divided_by_the_instances_as_in_azure(
    metric: str, uri: str, divides: Any, per_instance: bool, note: str
) -> None:
    """learn.microsoft.com, "Best practices for autoscale"."""
    entity = {"dimensions": [ORDERS]} if uri == BUS else {}
    converted = convert(setting(trigger(metric, uri, dividePerInstance=divides, **entity)))
    assert converted.default.policy is not None
    assert [rule.per_instance for rule in converted.default.policy.rules] == [per_instance]
    assert note in " ".join(converted.notes)


def trigger(metric: str, uri: str, **more: Any) -> dict[str, Any]:
    return {"metricName": metric, "metricResourceUri": uri, **more,
            "operator": "LessThan", "threshold": 5}  # fmt: skip


def setting(*triggers: Any, **more: Any) -> dict[str, Any]:
    """A setting with one default profile, whose rules scale in."""
    action = {"direction": "Decrease", "type": "ChangeCount", "value": "1", "cooldown": "PT1M"}
    return {
        "targetResourceUri": PLAN,
        "profiles": [
            {
                "name": "Default",
                "capacity": {"minimum": "1", "maximum": "9", "default": "1"},
                "rules": [{"metricTrigger": each, "scaleAction": action} for each in triggers],
                **more,
            }
        ],
    }


DAY, WEEKEND = Begins(0, WEEK[:5], "08:30"), Begins(1, ("Sat",), "00:00")


@pytest.mark.parametrize(
    ("begins", "held"),
    [
        ([DAY, Begins(2, WEEK[:5], "18:00", True)], [Holds(0, WEEK[:5], "08:30", "18:00")]),
        (
            [DAY, Begins(2, WEEK[:5], "03:00", True)],  # over midnight, and over the weekend
            [
                Holds(0, (*WEEK[:4], "Sun"), "08:30", "03:00"),
                Holds(0, WEEK[4:6], "08:30", "08:30"),
            ],
        ),
        ([Begins(0, ("Wed",), "12:00")], [Holds(0, WEEK, "12:00", "12:00")]),
        (
            [DAY, WEEKEND],  # neither has an end
            [
                Holds(0, WEEK[:4], "08:30", "08:30"),
                Holds(0, ("Fri",), "08:30", "00:00"),
                Holds(1, ("Sat", "Sun"), "00:00", "00:00"),
                Holds(1, ("Mon",), "00:00", "08:30"),
            ],
        ),
        (
            [Begins(0, ("Mon",), "08:00"), Begins(1, ("Mon",), "12:00"),
             Begins(2, ("Mon",), "12:00", True), Begins(2, ("Mon",), "18:00", True)],
            [Holds(0, ("Mon",), "08:00", "12:00"), Holds(1, ("Mon",), "12:00", "18:00")],
        ),
    ],
)  # fmt: skip
def test_a_recurring_profile_applies_until_the_next_one_begins(
    begins: list[Begins], held: list[Holds]
) -> None:
    assert week(begins) == held


def test_a_recurring_profile_without_an_end_applies_at_all_times_and_is_noted() -> None:
    document = example()
    profiles = document["properties"]["profiles"]
    profiles[:] = [p for p in profiles if not p["name"].startswith("{")]
    converted = convert(document)
    assert any("Office hours has no end in the setting" in note for note in converted.notes)
    schedule = loaded(document).policy
    assert isinstance(schedule, Schedule)
    for moment in (OFFICE, NIGHT, NIGHT + timedelta(days=4)):
        assert any(rule.holds(moment, "UTC") for rule in schedule.rules)


def cased(value: Any, change: Any) -> Any:
    """The document with its keys, enums, weekdays and zones in another case."""
    if isinstance(value, dict):
        return {change(k): v if k == "name" else cased(v, change) for k, v in value.items()}
    if isinstance(value, list):
        return [cased(each, change) for each in value]
    is_name = (
        not isinstance(value, str) or value.startswith("/") or "T" in value or "orders" in value
    )
    return value if is_name or value in METRICS else change(value)


METRICS = ("ActiveMessages", "CpuPercentage", "ApproximateMessageCount")
KIND = {"type": "Microsoft.Insights/autoscaleSettings", "location": "[resourceGroup().location]"}
REST = example()
FLAT = {**REST["properties"], "name": "workers-autoscale", "systemData": None, "tags": {}}
PARAMETERS = {"planId": {"type": "string", "defaultValue": "[variables('PLAN')]"}}
TEMPLATE = {
    "$schema": "https://schema.management.azure.com/schemas/2019-04-01/deploymentTemplate.json#",
    "parameters": {**PARAMETERS, "days": {"defaultValue": ["Monday"]}},
    "variables": {"plan": PLAN},
    "resources": [
        {"type": "Microsoft.Web/serverfarms", "name": "[parameters('planId')]"},
        {**KIND, **REST},
    ],
}
CLOCKS = json.loads(
    json.dumps(FLAT).replace('"PT10M"', '"0:10:00"').replace('"PT5M"', '"00:05:00.0000000"')
    .replace('"PT20M"', '"0:20:00"').replace('"PT1M"', '"0:01:00"')
)  # fmt: skip


def changed(*path: Any, value: Any) -> Any:
    document = copy.deepcopy(example())
    place = document["properties"]
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return document


TRIGGER = ("profiles", 0, "rules", 0, "metricTrigger")
RULE, SCHEDULE = ("profiles", 0, "rules", 0), ("profiles", 0, "recurrence", "schedule")


def nested(template: Any) -> Any:
    properties = {"template": {"resources": [template, *template.get("resources", [])]}}
    return {"type": "Microsoft.Resources/deployments", "properties": properties}


def in_template(changed_setting: Any, **more: Any) -> Any:
    return {**TEMPLATE, "resources": [{**KIND, "properties": changed_setting, **more}]}


@pytest.mark.parametrize(
    "document",
    [
        REST,
        FLAT,
        [FLAT],
        {"value": [REST], "nextLink": None},
        {"data": [{"type": "microsoft.web/serverfarms", "properties": {}}, REST], "count": 2},
        TEMPLATE,
        {**TEMPLATE, "languageVersion": "2.0",
         "resources": {"plan": {**KIND, "existing": True}, "scale": {**KIND, **REST}}},
        in_template({**REST["properties"], "targetResourceUri": "[parameters('planid')]"}),
        in_template({**REST["properties"], "targetResourceUri": "[ variables( 'plan' ) ]"}),
        cased(REST, str.lower),
        cased(REST, str.upper),
        CLOCKS,
    ],
)  # fmt: skip
def test_every_export_format_of_a_setting_is_read(document: Any) -> None:
    """The CLI, its lists and its older clock forms, the REST API, templates without expressions."""
    assert code(document) == code(REST)


def code(document: Any, name: str | None = None) -> list[str]:
    """The rules file without its comments, and without names that have another case."""
    source = written(convert(document, name)).lower()
    return [line for line in source.splitlines() if not line.startswith("#")]


def test_one_of_several_settings_is_chosen_by_its_name() -> None:
    other = {**FLAT, "name": "other", "profiles": FLAT["profiles"][-1:]}
    for several in ([FLAT, other], {"resources": [{**KIND, **REST}, {**KIND, **other}]}):
        assert code(several, "other") == code(several, "OTHER") == code(other)
        with pytest.raises(BacktestError, match="2 autoscale settings: workers-autoscale, other"):
            convert(several)
        with pytest.raises(BacktestError, match="--setting third: 0 settings have this name"):
            convert(several, "third")


PARIS = {
    "timeZone": "Romance Standard Time",
    "start": "2026-03-01T00:00:00Z",
    "end": "2026-03-02T00:00:00Z",
}
RECURRENCE = {"frequency": "Week", "schedule": {
    "timeZone": "UTC", "days": DAY_NAMES, "hours": [8, 20], "minutes": [0]}}  # fmt: skip


def recurring(name: str, most: int, hours: list[int], *rules: Any) -> dict[str, Any]:
    schedule = {**RECURRENCE["schedule"], "hours": hours}  # type: ignore[dict-item]
    (profile,) = setting(
        *rules, name=name, capacity={"minimum": str(most), "maximum": str(most)},
        recurrence={"frequency": "Week", "schedule": schedule},
    )["profiles"]  # fmt: skip
    return dict(profile)


DAY_ENDS = '{"name":"Default","for":"Day"}'
EVENING_ENDS = '{"name":"Default","for":"Evening"}'


@pytest.mark.parametrize(
    ("profiles", "at"),
    [
        pytest.param(
            [recurring("Day", 5, [8, 20]), recurring(DAY_ENDS, 2, [12, 22])],
            {9: 5, 13: 2, 19: 2, 21: 5, 23: 2},
            id="each of several hours begins a profile",
        ),
        pytest.param(
            [
                recurring("Day", 5, [8]),
                recurring("Evening", 6, [18]),
                recurring(DAY_ENDS, 2, [12, 18]),
                recurring(EVENING_ENDS, 3, [22, 8]),
            ],
            {9: 5, 13: 2, 19: 6, 23: 3, 3: 3},
            id="copies of the default profile that differ are kept",
        ),
        pytest.param(
            [recurring("Day", 5, [8]), recurring("Night", 2, [20])],
            {7: 2, 9: 5, 19: 5, 21: 2},
            id="without a default profile, each lasts until the next one begins",
        ),
    ],
)
def test_recurring_profiles_apply_at_their_hours(
    profiles: list[dict[str, Any]], at: dict[int, int]
) -> None:
    document = {**setting(), "profiles": profiles}
    assert {h: decided(OFFICE.replace(hour=h), 3, document, plan_capacity=3) for h in at} == at
    differs = "Default after Evening differs" in " ".join(convert(document).notes)
    assert differs is (len(profiles) == 4)


def test_a_fixed_date_in_utc_ends_at_its_second_and_needs_no_note() -> None:
    sale = {"start": "2026-11-18T10:00:00Z", "end": "2026-11-18T23:59:59.000Z"}
    capacity = {"minimum": "4", "maximum": "6"}
    profiles = [*setting()["profiles"], *setting(fixedDate=sale, capacity=capacity)["profiles"]]
    document = {**setting(), "profiles": profiles}
    at = [OFFICE.replace(hour=23, minute=59, second=second) for second in (58, 59)]
    assert [decided(now, 2, document, plan_capacity=2) for now in at] == [4, 2]
    assert "local time" not in " ".join(convert(document).notes)


def test_limits_without_rules_are_converted() -> None:
    document = setting(capacity={"minimum": "4", "maximum": "6"})
    assert [decided(OFFICE, n, document, plan_capacity=n) for n in (2, 5, 8)] == [4, 5, 6]


@pytest.mark.parametrize(
    ("document", "note"),
    [
        (setting(trigger("MessageCount", f"{BUS}/queues/q")), "includes dead letters"),
        (setting(trigger("Messages", BUS, dimensions=[ORDERS])), "includes dead letters"),
        (setting(capacity={"minimum": "0", "maximum": "3"}), "capacity.minimum = 0 becomes 1"),
        ({**setting(), "enabled": "False"}, "the setting is disabled"),
        (in_template(setting(), condition="[parameters('on')]"), "only if [parameters('on')]"),
        (
            in_template({**FLAT, "targetResourceUri": "[parameters('planId')]"}),
            f"parameters('planId') is read as its default, {PLAN!r}",
        ),
        (changed(*TRIGGER, "timeAggregation", value="Total"), "profiles[0].rules[0]: total of"),
        (REST, "Monitoring Reader"),
        ({"value": [setting()], "nextLink": "https://x"}, "continues at nextLink"),
        (
            {**FLAT, "profiles": [*setting()["profiles"], *setting(fixedDate=PARIS)["profiles"]]},
            "local time of Europe/Paris",
        ),
    ],
)  # fmt: skip
def test_a_note_tells_each_difference(document: Any, note: str) -> None:
    assert note in " ".join(convert(document).notes)
    assert note in written(convert(document))
    assert ("four times" in " ".join(convert(document).notes)) is ("total of" in note)


@pytest.mark.parametrize(
    ("document", "left_out"),
    [
        ({**setting(), "notifications": [{}]}, ("notifications (see WebhookUrl)",)),
        ({**setting(), "predictiveAutoscalePolicy": {"scaleMode": "forecastOnly"}},
         ("predictive scaling (see SeasonalFloor)",)),
        (setting(trigger("Cpu", PLAN, weight=3)), ("profiles[0].rules[0].weight",)),
        (setting(trigger("Cpu", PLAN, dimensions=[{**ORDERS, "Operator": "NotEquals"}])),
         ("profiles[0].rules[0]: the condition NotEquals on dimension EntityName",)),
        (in_template({**setting(), "notifications": "[parameters('mail')]"}),
         ("notifications, a template expression",)),
    ],
)  # fmt: skip
def test_what_is_not_converted_is_named(document: Any, left_out: tuple[str, ...]) -> None:
    assert convert(document).left_out == left_out


def test_the_default_profile_is_found_in_the_copies_that_the_portal_makes() -> None:
    """The portal and the CLI rename the default profile and keep no other default:
    learn.microsoft.com, "Autoscale with multiple profiles"."""
    document = example()
    profiles = document["properties"]["profiles"]
    (end,) = [p for p in profiles if p["name"].startswith("{")]
    (plain,) = [p for p in profiles if "recurrence" not in p and "fixedDate" not in p]
    profiles.remove(plain)
    end |= {key: plain[key] for key in ("capacity", "rules")}
    converted, original = loaded(document), loaded(example())
    assert converted.limits == original.limits
    assert converted.policy.default.policy == original.policy.default.policy  # type: ignore[attr-defined]
    assert converted.policy.rules == original.policy.rules  # type: ignore[attr-defined]


@pytest.mark.parametrize(("rule", "direction"), [(0, "out"), (1, "in")])
def test_a_rule_with_an_exact_count_takes_its_direction_from_its_comparison(
    rule: int, direction: str
) -> None:
    exactly = {"direction": "None", "type": "ExactCount", "value": "5", "cooldown": "PT5M"}
    document = changed("profiles", 0, "rules", rule, "scaleAction", value=exactly)
    (office,) = [p for p in convert(document).profiles if p.name == "Office hours"]
    assert office.policy is not None
    converted = office.policy.rules[rule]
    assert (converted.direction, converted.unit, converted.by) == (direction, "exactly", 5)


def test_text_of_the_setting_is_never_executed(tmp_path: Path) -> None:
    document = changed("profiles", 0, "name", value=f"x\nopen({str(tmp_path / 'ran')!r}, 'w')\n#")
    document["properties"]["profiles"][0]["capacity"]["default"] = "9"
    loaded(document)
    assert list(tmp_path.iterdir()) == []
    for name in ('w"""+1/0+"""', "w\n1/0", "w\\"):
        uri = f"/subscriptions/s/resourceGroups/g/providers/Microsoft.Web/serverfarms/{name}"
        with pytest.raises(BacktestError, match="is not an App Service Plan"):
            convert(changed("targetResourceUri", value=uri))


def test_the_default_capacity_of_the_default_profile_becomes_the_fallback() -> None:
    document = example()
    for profile in document["properties"]["profiles"]:
        profile["capacity"] = {"minimum": "1", "maximum": "6", "default": "4"}
    assert loaded(document).guards.missing.then == 4
    for profile in document["properties"]["profiles"]:
        profile["capacity"]["default"] = "1"
    assert loaded(document).guards.missing.then == "hold_in"
    assert "capacity.default" not in " ".join(convert(document).notes)


CIRCLE_A, CIRCLE_B = "[variables('a')]", "[variables('b')]"
CIRCLE = {**FLAT, "targetResourceUri": CIRCLE_A}
EXPRESSION = (
    "is a template expression. Deploy it, and convert the output of: az monitor autoscale show"
)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], "not an autoscale setting"),
        (json.loads("[" * 900 + "]" * 900), "nested too deeply"),
        ({"resources": []}, "autoscaleSettings. Write it with: az monitor autoscale show"),
        ({"resource": {"azurerm_monitor_autoscale_setting": {}}}, "JSON of Terraform is not read"),
        (in_template({**FLAT, "targetResourceUri": "[resourceId('a/b', 'c')]"}), EXPRESSION),
        ({**FLAT, "targetResourceUri": "[parameters('planId')]"}, EXPRESSION),
        (in_template({**FLAT, "profiles": {"copy": [{"count": 2}]}}), "profiles has a copy loop"),
        ({**in_template(CIRCLE), "variables": {"a": CIRCLE_B, "b": CIRCLE_A}}, EXPRESSION),
        ({"resources": [nested(nested(TEMPLATE))]}, "in a nested deployment"),
        (setting(trigger("Cpu", PLAN, statistic="Median")), "statistic = 'Median'"),
        (setting(trigger("IncomingMessages", f"{TOPIC}/subscriptions/s")), "of a topic's subscr"),
        (setting(capacity={"minimum": "0", "maximum": "0"}), "capacity.maximum = 0: a plan has"),
        (changed(*SCHEDULE, "minutes", value=[10**20]), "profiles[0]: OverflowError"),
        (setting(fixedDate={"start": "soon", "end": "later"}), "fixedDate.start = 'soon'"),
        ({**FLAT, "profiles": [FLAT["profiles"][-1]] * 2}, "Default, Default are default profiles"),
        (changed(*RULE, "scaleAction", "type", value="NextValue"), "'NextValue' is not supported"),
        (changed("profiles", value=[]), "profiles must be a list with at least one profile"),
        (changed("profiles", 0, value=None), "profiles[0] = None: must be a JSON object"),
        (changed("profiles", 0, "name", value=""), "profiles[0].name is empty"),
        (changed(*RULE, value="out"), "rules[0] = 'out': must be a JSON object"),
        (changed(*RULE, "scaleAction", value=None), "rules[0].scaleAction = None: must be"),
        (changed(*TRIGGER, "metricName", value=None), "rules[0].metricName is empty. Deploy it"),
        (changed(*TRIGGER, "metricResourceUri", value=""), "rules[0].metricResourceUri is empty"),
        (changed("profiles", 3, "capacity", value=3), "profiles[3].capacity = 3: must be"),
        (changed(*SCHEDULE, value=None), "recurrence.schedule = None: must be a JSON object"),
        (changed(*TRIGGER, "timeWindow", value="soon"), "'soon' is not a duration"),
        (changed(*TRIGGER, "threshold", value=float("nan")), "threshold = nan"),
        (changed(*SCHEDULE, "timeZone", value="Mars"), "time zone 'Mars'"),
        (changed(*SCHEDULE, "hours", value=[]), "hours and minutes need at least one"),
        (
            changed("profiles", 3, "capacity", value={"minimum": 1}),
            "[3]: the key 'maximum' is miss",
        ),
    ],
)
def test_a_setting_that_cannot_be_converted_is_refused_with_the_place(
    document: Any, message: str
) -> None:
    with pytest.raises(BacktestError) as raised:
        convert(document)
    assert message in str(raised.value)


def test_the_command_writes_a_file_and_never_overwrites_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "scaling_rules.py"
    words = ["import-autoscale", str(EXAMPLE), "--output", str(output)]
    assert main(words) == 0
    last = capsys.readouterr().err.splitlines()[-2:]
    assert last[0] == "Not converted: notifications (see WebhookUrl)."
    assert last[1].startswith("A trace of arrivals has no data of workers-cpupercentage")
    assert "MetricRules(" in output.read_text()
    assert main(words) == 2
    assert "already exists" in capsys.readouterr().err
    assert main(["import-autoscale", str(tmp_path / "none.json")]) == 2
    assert "none.json" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("asp", 'resource "azurerm_monitor_autoscale_setting" "a" {}', "HCL is not read"),
        ("main.bicep", "resource a 'Microsoft.Insights/autoscaleSettings@2022-10-01'", "Bicep is"),
        ("show.json", "Name    Enabled\n------  ----", "not JSON: "),
    ],
)
def test_another_format_is_refused_with_the_command_that_writes_the_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, text: str, message: str
) -> None:
    (tmp_path / name).write_text(text)
    assert main(["import-autoscale", str(tmp_path / name)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "az monitor autoscale show --resource-group" in error
