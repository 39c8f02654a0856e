"""The command line: its output, and that bad input leads to an error message, not a traceback."""

from __future__ import annotations

import json
from datetime import datetime
from statistics import mean

import pytest

from backtest.safety import Safety
from tests.backtest.arenas import BACKLOG_RULES, SHIPPED_RULES, CommandLine, bursty, csv_text

POLICIES = ["rules", "original", "azure_monitor", "keda", "knative", "rate_drain"]


def test_json_has_the_documented_keys_and_the_report_every_policy(backtest: CommandLine) -> None:
    trace = backtest.trace(bursty(1, 120).tolist())
    result = backtest.json(trace, "--rules", SHIPPED_RULES)
    assert list(result) == ["trace", "arena", "policies", "clairvoyant"]
    assert list(result["trace"]) == ["name", "minutes", "arrivals", "notices"]
    assert list(result["policies"]) == POLICIES
    assert list(result["clairvoyant"]) == ["J_dp", "J_lp", "gap", "actions"]
    for score in result["policies"].values():
        assert " ".join(score) == (
            "J regret_dp regret_lp violation_minutes late_work age_p50 age_p99 age_max "
            "instance_hours actions reversals actions_an_hour_max"
        )
        assert score["regret_lp"] >= 0, "no policy beats the bound"
    assert result["clairvoyant"]["gap"] >= 0
    code, out, err = backtest.run(trace, "--rules", SHIPPED_RULES)
    assert (code, err) == (0, "")
    for name in (*POLICIES, "clairvoyant", "lower bound", "Your rules cost"):
        assert name in out
    assert "that a replay does not need: ResourceToScale" in " ".join(out.split())


def test_no_number_of_the_table_is_cut_at_80_columns(backtest: CommandLine) -> None:
    trace = backtest.trace(bursty(1, 120).tolist())
    code, out, _ = backtest.run(trace, "--rules", SHIPPED_RULES, "--late-penalty", "1e9")
    assert (code, "…" in out) == (0, False)


def test_the_options_set_the_arena(backtest: CommandLine) -> None:
    options = "--instance-rate 12 --dead-time-minutes 2 --age-limit-minutes 4 --switch-cost 3"
    more = "--late-penalty 8 --max-instances 9"
    trace, world = backtest.trace([20] * 30), "--sample-seconds 20 --variation pieces --seed 3"
    given = f"{options} {more} {world}".split()
    result = backtest.json(trace, "--rules", SHIPPED_RULES, *given)
    assert result["arena"] == {
        "instance_rate": 12,
        "dead_time_minutes": 2,
        "age_limit_minutes": 4,
        "switch_cost": 3,
        "late_penalty": 8,
        "min_instances": 1,
        "max_instances": 9,
        "superseding": "keep",
        "service_learned": False,
        "finished_counted": False,
        "backlog_metric": None,
        "cpu": False,
        "cpu_percent": None,
        "in_hand_minutes": 0,
        "start_instances": None,
        "sample_seconds": 20,
        "confirm_seconds": 8,
        "changes_per_hour": 20,
        "piece_instances": 2,
        "variation": "pieces",
        "seed": 3,
        "metrics": {"demo-demo-backlog": "backlog"},
    }
    kind = backtest.json(trace, "--rules", SHIPPED_RULES, "--arena", "kind")["arena"]
    assert (kind["sample_seconds"], kind["confirm_seconds"], kind["changes_per_hour"]) == (
        60,
        None,
        None,
    )


@pytest.mark.parametrize("suffix", ["png", "html"])
def test_a_plot_is_written_as_png_or_html(backtest: CommandLine, suffix: str) -> None:
    path = backtest.directory / f"plot.{suffix}"
    trace = backtest.trace(bursty(1, 120).tolist())
    code, _, err = backtest.run(trace, "--rules", SHIPPED_RULES, "--plot", path)
    assert (code, err) == (0, "")
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG" if suffix == "png" else b"<!doctype html>")
    assert len(content) > 20_000
    code, _, err = backtest.run(trace, "--rules", SHIPPED_RULES, "--plot", path / "none.png")
    assert code == 2
    assert "none.png: the plot cannot be written" in err


def test_the_options_of_a_trace_reach_its_reader(backtest: CommandLine) -> None:
    times = [f"2026-11-0{day} 12:{at:02}" for day in (1, 2) for at in range(20) if at % 9 != 5]
    options = "--series b --per-second --time-zone Asia/Tokyo --missing gap"
    path = backtest.file("two.csv", "time,a,b\n" + "".join(f"{t},2,3\n" for t in times))
    trace = backtest.json(path, "--rules", SHIPPED_RULES, *options.split())["trace"]
    assert (trace["minutes"], trace["arrivals"]) == (40, 40 * 180)
    assert trace["notices"][0].startswith("read as CSV, column b, items per second, 40 minutes")
    assert any("read as Asia/Tokyo" in notice for notice in trace["notices"])
    tuned = ("tune", path, "--rules", SHIPPED_RULES, "--tries", 0)
    assert "Choose one with --series" in backtest.run(*tuned)[2]
    assert backtest.run(*tuned, *options.split())[0] == 0


def test_a_broken_safety_rule_leads_to_exit_code_1(
    backtest: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    minute = Safety.minute

    def breaking(self: Safety, capacity: int, now: datetime, *, capacity_changed: bool) -> None:
        minute(self, capacity, now, capacity_changed=capacity_changed)
        self._break(now, "as a test")

    monkeypatch.setattr(Safety, "minute", breaking)
    trace = backtest.trace([20] * 30)
    code, out, _ = backtest.run(trace, "--rules", SHIPPED_RULES, "--faults", "4")
    assert code == 1
    assert "Safety rules were broken 120 times" in out  # four samples a minute


def test_a_resource_must_be_chosen_if_the_rules_declare_several(backtest: CommandLine) -> None:
    last = BACKLOG_RULES.rindex("return [")
    two = BACKLOG_RULES[:last] + (
        "from dataclasses import replace\n"
        "    jobs = {'jobs': StorageQueue('jobs')}\n"
        "    return [Resource(n, replace(plan, name=n), jobs, policy) for n in ('one', 'two')]\n"
    )
    rules, trace = backtest.file("rules.py", two), backtest.trace([20] * 30)
    code, _, err = backtest.run(trace, "--rules", rules)
    assert code == 2
    assert "Choose one with --resource: one, two" in err
    assert backtest.run(trace, "--rules", rules, "--resource", "two")[0] == 0
    assert "no resource 'three'" in backtest.run(trace, "--rules", rules, "--resource", "three")[2]


def test_rules_may_have_comments_in_any_encoding_as_python_allows(backtest: CommandLine) -> None:
    rules, trace = backtest.file("rules.py", BACKLOG_RULES), backtest.trace([20] * 30)
    rules.write_bytes(b"# Gesch\xe4ft\n" + rules.read_bytes())
    assert backtest.run(trace, "--rules", rules)[0] == 0


TWO_BACKLOGS = BACKLOG_RULES.replace(
    '{"jobs": StorageQueue("jobs")}', '{"jobs": StorageQueue("jobs"), "more": StorageQueue("more")}'
)


@pytest.mark.parametrize("name", ["kind", "production"])
def test_learning_the_throughput_costs_little_more_than_a_given_one(
    backtest: CommandLine, name: str
) -> None:
    costs: list[list[float]] = []
    for seed in (4, 5, 6):
        trace = backtest.trace(bursty(seed, 600).tolist())
        common = (trace, "--rules", SHIPPED_RULES, "--instance-rate", 10, "--arena", name)
        given, learned, counted = (
            backtest.json(*common, *options)
            for options in ((), ("--learn",), ("--learn-finished",))
        )
        least = given["policies"]["rules"]["J"]
        costs.append([costly["policies"]["rules"]["J"] / least for costly in (learned, counted)])
    by_backlog, by_count = map(mean, zip(*costs, strict=True))
    assert by_backlog < 1.13
    assert by_count < 1.09
    assert counted["arena"]["metrics"] == {"demo-demo-backlog": "backlog", "finished": "finished"}


def test_the_report_has_money_if_a_price_is_given_or_set(
    backtest: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = (backtest.trace([20] * 60), "--rules", SHIPPED_RULES, "--instance-rate", 12)
    assert "money" not in backtest.run(*options)[1]
    _, given, _ = backtest.run(*options, "--price", 0.5)
    monkeypatch.setenv("PricePerInstanceHour", "0.5")
    _, set_, _ = backtest.run(*options)
    assert given == set_
    clairvoyant = next(line for line in given.splitlines() if line.startswith("clairvoyant"))
    hours, money = clairvoyant.split()[4], clairvoyant.split()[-1]
    assert float(money) == pytest.approx(float(hours) / 2, abs=0.3)


def test_the_backlog_can_be_limited_to_one_of_several_metrics(backtest: CommandLine) -> None:
    rules = backtest.file("rules.py", TWO_BACKLOGS)
    options = (backtest.trace([20] * 30), "--rules", rules, "--instance-rate", 12)
    both = backtest.json(*options)
    assert any("jobs and more each see the whole backlog" in n for n in both["trace"]["notices"])
    one = backtest.json(*options, "--backlog-metric", "more")
    assert one["arena"]["metrics"] == {"jobs": "0", "more": "backlog"}
    assert not any("whole backlog" in notice for notice in one["trace"]["notices"])
    assert one["policies"]["original"]["J"] == both["policies"]["original"]["J"]


PLAN_ID = (
    "/subscriptions/00000000-0000-0000-0000-000000000001/resourceGroups/group"
    "/providers/Microsoft.Web/serverfarms/plan"
)
CPU_RULES = f"""
# not converted: notifications (see WebhookUrl)
from shared.autoscaling import *


def resources(settings):
    plan = AppServicePlan("00000000-0000-0000-0000-000000000001", "group", "plan")
    load = AzureMonitorMetric("{PLAN_ID}", "CpuPercentage")
    metrics = {{"load": load, "jobs": StorageQueue("jobs")}}
    rules = (MetricRule("load", ">", 70, "out"), MetricRule("load", "<", 30, "in"))
    return [Resource("plan", plan, metrics, MetricRules(rules), Limits(1, 20))]
"""


@pytest.mark.parametrize(
    ("before", "after", "unseen"),
    [
        ("CpuPercentage", "CpuPercentage", "load"),
        ("MetricRules(rules)", "any_of(BacklogTarget('jobs'), MetricRules(rules))", "load"),
        ("MetricRules(rules)", "lambda seen: Recommendation(seen.capacity, '')", "load"),
    ],
)
def test_rules_on_a_metric_that_the_trace_does_not_have_get_no_verdict(
    backtest: CommandLine, before: str, after: str, unseen: str
) -> None:
    rules = backtest.file("rules.py", CPU_RULES.replace(before, after))
    options = (backtest.trace([20] * 30), "--rules", rules)
    result = backtest.json(*options)
    assert list(result["policies"]) == POLICIES[1:]
    assert result["not_judged"]["metrics"] == [unseen]
    code, out, _ = backtest.run(*options)
    said = " ".join(out.split())
    assert code == 0
    assert "No verdict: your rules cannot be judged from arrivals alone" in said
    assert "Your rules cost" not in said
    assert backtest.run(*options, "--plot", backtest.directory / "plot.png")[0] == 2


def test_a_metric_without_data_that_no_rule_reads_does_not_prevent_a_verdict(
    backtest: CommandLine,
) -> None:
    rules = CPU_RULES.replace("MetricRules(rules)", "BacklogTarget('jobs')")
    result = backtest.json(backtest.trace([20] * 30), "--rules", backtest.file("rules.py", rules))
    assert list(result["policies"]) == POLICIES
    assert "not_judged" not in result


CPU_JSON = json.dumps(
    {
        "value": [
            {
                "name": {"value": name},
                "timeseries": [{"data": [
                    {"timeStamp": f"2026-11-02T00:{minute:02}:00Z", "average": value}
                    for minute in range(40) if minute != 30
                ]}],
            }
            for name, value in (("ObservedMetricValue", 75.0), ("ObservedCapacity", 4.0))
        ]
    }
)  # fmt: skip


def cpu_csv(header: str, row: str) -> str:
    rows = [f"2026-11-02T00:{minute:02}:00Z,{row}" for minute in range(40) if minute != 30]
    return "\n".join((header, *rows))


@pytest.mark.parametrize(
    "text",
    [
        cpu_csv("time,cpu,instances", "75,4"),
        cpu_csv("TimeGenerated [UTC],ObservedMetricValue,ObservedCapacity", "75.0,4.0"),
        cpu_csv("time,arrivals,Instances,CpuPercentage (Avg)", "900,4,75"),
        CPU_JSON,
    ],
)
def test_rules_on_cpu_are_judged_by_cpu_and_instances(backtest: CommandLine, text: str) -> None:
    options = (backtest.file("cpu", text), "--rules", backtest.file("rules.py", CPU_RULES))
    result = backtest.json(*options)
    assert result["arena"]["metrics"] == {"load": "cpu", "jobs": "0"}
    assert (result["arena"]["instance_rate"], result["arena"]["start_instances"]) == (1, 4)
    assert result["trace"]["arrivals"] == pytest.approx(39 * 3)
    assert list(result["policies"]) == POLICIES
    assert result["policies"]["rules"]["actions"] == 1  # 75 % of four instances, then 60 % of five
    assert result["policies"]["original"]["violation_minutes"] == 0  # It sees a backlog, as before.
    said = " ".join(backtest.run(*options)[1].split())
    assert "Your rules cost" in said
    assert said.endswith(
        "Not converted from the autoscale setting: notifications (see WebhookUrl). "
        "Minutes of the trace without data: 1. The notes above say how they count."
    )


# --- what cannot be used ---

STEADY, CPU = csv_text([20] * 30), cpu_csv("time,cpu,instances", "75,4")
TWO_OF_SIX = "time,cpu,instances\n2026-11-02T00:00Z,75,4\n2026-11-02T00:05Z,75,4"
FAILS = "def resources(settings):\n    return "
REMOVED = "from shared.autoscaling import "
TUPLE = BACKLOG_RULES.replace("def policy(seen):", "def policy(seen):\n    return 2, 'x'")


@pytest.mark.parametrize(
    ("text", "rules", "options", "message"),
    [
        # the trace; test_traces.py has all errors of its reader
        ("", None, "", "the file is empty"),
        (csv_text([0] * 50), None, "", "Give --instance-rate"),
        (cpu_csv("time,cpu,instances", "75,0"), CPU_RULES, "", "instances = 0: must be 1 to 1000"),
        (CPU, CPU_RULES, "--instance-rate 5", "no items"),
        (TWO_OF_SIX, CPU_RULES, "", "2 of 6 minutes have both CPU and instances"),
        # the rules
        (STEADY, f"{REMOVED}StablePanic", "", "StablePanic was removed. Use QueueAge("),
        (STEADY, f"{FAILS}[]\n", "", "declares no resource"),
        (STEADY, f"{FAILS}[3]\n", "", "must be a Resource"),
        (STEADY, BACKLOG_RULES.replace("[Resource", "2 * [Resource"), "", "declared 2 times"),
        (STEADY, TWO_BACKLOGS, "--backlog-metric typo", "must be one of jobs, more"),
        (STEADY, TUPLE, "", "returned (2, 'x') instead of a Recommendation"),
        (STEADY, "import shared.autoscalling", "", "Did you mean shared.autoscaling?"),
        # the options
        (STEADY, None, "--instance-rate 0", "the instance rate is 0"),
        (STEADY, None, "--max-instances 0", "at least"),
        (STEADY, None, "--age-limit-minutes 0", "the age limit is 0; it must"),
        (STEADY, None, "--plot plot.pdf", "plot.pdf"),
        (STEADY, None, "--sample-seconds 25", "is 25 s; it must divide a minute"),
        (STEADY, None, "--variation never", "invalid choice: 'never'"),
    ],
)
def test_what_cannot_be_used_is_refused_with_its_place_and_without_a_traceback(
    backtest: CommandLine, text: str | bytes, rules: str | None, options: str, message: str
) -> None:
    path = SHIPPED_RULES if rules is None else backtest.file("rules.py", rules)
    code, out, err = backtest.run(
        backtest.file("trace.csv", text), "--rules", path, *options.split()
    )
    assert (code, out) == (2, "")
    assert message in " ".join(err.split())
    assert "Traceback" not in err
