"""Rules converted from an autoscale setting of Azure Monitor decide like the setting."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from backtest.autoscale_setting import convert
from backtest.autoscale_week import Begins, Holds, week
from backtest.cli import main
from backtest.errors import BacktestError
from backtest.import_autoscale import written
from shared.autoscaling import AzureMonitorMetric, Resource, Schedule, ServiceBusQueue
from shared.autoscaling.deciding.decide import decide
from shared.autoscaling.measurements import CAPACITY_METRIC, MetricValue, Window
from shared.autoscaling.state import ScalingState
from shared.settings import load

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


def decided(now: datetime, capacity: int, **values: float) -> int | None:
    """The decision after ten minutes of constant values."""
    times = [now - timedelta(seconds=15 * n) for n in range(40, -1, -1)]
    series = {**values, CAPACITY_METRIC: float(capacity)}
    histories = {
        name.replace("_", "-"): Window(tuple(MetricValue(t, value) for t in times))
        for name, value in series.items()
    }
    return decide(loaded(example()), ScalingState(histories), now).desired


@pytest.mark.parametrize(
    ("now", "capacity", "values", "desired"),
    [
        (OFFICE, 4, {"my_bus_activemessages": 500}, 6),  # 125 for each instance
        (OFFICE, 4, {"my_bus_activemessages": 300}, 4),
        (OFFICE, 4, {"my_bus_activemessages": 5}, 3),
        (OFFICE, 3, {"my_bus_activemessages": 5}, 3),  # the profile's minimum
        (NIGHT, 3, {"workers_cpupercentage": 80, "jobs_approximatemessagecount": 0}, 5),
        (NIGHT, 3, {"workers_cpupercentage": 20, "jobs_approximatemessagecount": 4}, 1),
        (NIGHT, 3, {"workers_cpupercentage": 20, "jobs_approximatemessagecount": 40}, 3),
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


WEEK = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
BUS = (
    "/subscriptions/00000000-0000-0000-0000-000000000001/resourceGroups/my-group/providers"
    "/Microsoft.ServiceBus/namespaces/my-bus"
)
ORDERS = {"DimensionName": "EntityName", "Operator": "Equals", "Values": ["orders"]}
PULLED = AzureMonitorMetric(BUS, "IncomingMessages", filter="EntityName eq 'orders'")


@pytest.mark.parametrize(
    ("metric", "uri", "dimensions", "source"),
    [
        ("ActiveMessages", BUS, [ORDERS], ServiceBusQueue("orders")),
        ("DeadletteredMessages", BUS, [ORDERS], ServiceBusQueue("orders", "dead_letter")),
        ("ScheduledMessages", f"{BUS}/queues/orders", [], ServiceBusQueue("orders", "scheduled")),
        ("MessageCount", f"{BUS}/queues/orders", [], ServiceBusQueue("orders")),
        ("IncomingMessages", BUS, [ORDERS], PULLED),
        ("IncomingMessages", f"{BUS}/queues/orders/", [], PULLED),
        ("IncomingMessages", BUS, [], replace(PULLED, filter="")),
        (
            "ActiveMessages",
            BUS,
            [{**ORDERS, "Values": ["a", "it's"]}],
            AzureMonitorMetric(
                BUS, "ActiveMessages", filter="EntityName eq 'a' or EntityName eq 'it''s'"
            ),
        ),
        (
            "IncomingMessages",
            BUS,
            [{**ORDERS, "Operator": "NotEquals"}],
            replace(PULLED, filter=""),
        ),
    ],
)
def test_a_metric_of_service_bus_becomes_the_source_that_counts_the_same(
    metric: str, uri: str, dimensions: list[Any], source: Any
) -> None:
    document = example()
    for profile in document["properties"]["profiles"]:
        for rule in profile["rules"]:
            rule["metricTrigger"] |= {
                "metricName": metric, "metricResourceUri": uri, "dimensions": dimensions,
                "statistic": "Average",
            }  # fmt: skip
    assert set(convert(document).metrics.values()) == {source}
    assert loaded(document).metrics == convert(document).metrics


DAY, WEEKEND = Begins(0, WEEK[:5], "08:30"), Begins(1, ("Sat",), "00:00")


@pytest.mark.parametrize(
    ("begins", "held"),
    [
        ([], []),
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


@pytest.mark.parametrize("form", ["rest", "cli", "template"])
def test_every_export_format_of_a_setting_is_read(form: str) -> None:
    rest = example()
    cli = rest["properties"]
    kind = {"type": "Microsoft.Insights/autoscaleSettings"}
    template = {"resources": [{"type": "else"}, {**kind, **rest}]}
    document = {"rest": rest, "cli": cli, "template": template}[form]
    assert written(convert(document)) == written(convert(rest))


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


def test_a_note_warns_of_sums_over_more_frequent_samples() -> None:
    noted = " ".join(convert(changed(*TRIGGER, "timeAggregation", value="Total")).notes)
    assert "profiles[0].rules[0]: total of" in noted
    assert "four times" not in " ".join(convert(example()).notes)


def test_the_default_capacity_of_the_default_profile_becomes_the_fallback() -> None:
    document = example()
    for profile in document["properties"]["profiles"]:
        profile["capacity"] = {"minimum": "1", "maximum": "6", "default": "4"}
    assert loaded(document).guards.missing.then == 4
    for profile in document["properties"]["profiles"]:
        profile["capacity"]["default"] = "1"
    assert loaded(document).guards.missing.then == "hold_in"
    assert "capacity.default" not in " ".join(convert(document).notes)


def test_a_window_that_is_longer_than_the_usual_history_is_kept() -> None:
    assert loaded(changed(*TRIGGER, "timeWindow", value="PT2H")).kept_history_seconds == 7200


def test_notes_name_what_is_not_converted() -> None:
    notes = " ".join(convert(example()).notes)
    for word in ("notifications", "Monitoring Reader", "capacity.default", "cooldowns"):
        assert word in notes


def changed(*path: Any, value: Any) -> Any:
    document = copy.deepcopy(example())
    place = document["properties"]
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return document


TRIGGER = ("profiles", 0, "rules", 0, "metricTrigger")


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], "not an autoscale setting"),
        ({"resources": []}, "no resource is of type"),
        (changed("profiles", value=[]), "profiles must be a list with at least one profile"),
        (changed("profiles", value={"a": 1}), "profiles must be a list with at least one profile"),
        (changed("targetResourceUri", value="/subscriptions/x"), "is not an App Service Plan"),
        (changed(*TRIGGER, "operator", value="About"), "profiles[0].rules[0]: "),
        (changed(*TRIGGER, "timeWindow", value="soon"), "'soon' is not a duration"),
        (changed(*TRIGGER, "threshold", value=float("nan")), "threshold = nan"),
        (changed(*TRIGGER, "threshold", value="much"), "profiles[0]: ValueError"),
        (
            changed("profiles", 0, "recurrence", "schedule", "timeZone", value="Mars"),
            "time zone 'Mars'",
        ),
        (
            changed("profiles", 0, "recurrence", "schedule", "days", value=["Caturday"]),
            "'Cat' is not a day",
        ),
        (
            changed("profiles", 0, "recurrence", "schedule", "hours", value=[]),
            "profiles[0]: IndexError",
        ),
        (changed("profiles", 0, "rules", 0, "metricTrigger", value="x"), "profiles[0]: "),
        (changed("profiles", 3, "capacity", value={"minimum": "1"}), "profiles[3]: KeyError"),
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
    assert "note: notifications" in capsys.readouterr().err
    assert "MetricRules(" in output.read_text()
    assert main(words) == 2
    assert "already exists" in capsys.readouterr().err
    assert main(["import-autoscale", str(tmp_path / "none.json")]) == 2
    assert "none.json" in capsys.readouterr().err


def test_the_limits_of_the_resource_cover_those_of_all_profiles() -> None:
    limits = loaded(example()).limits
    assert limits == replace(limits, minimum=1, maximum=20)
