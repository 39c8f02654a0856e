"""The command line: its output, and that bad input leads to an error message, not a traceback."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from backtest.safety import Safety
from tests.backtest.arenas import BACKLOG_RULES, NASA, SHIPPED_RULES, CommandLine, bursty, csv_text

POLICIES = ["rules", "original", "azure_monitor", "keda", "knative", "rate_drain"]
SCORE = [
    "J",
    "regret_dp",
    "regret_lp",
    "violation_minutes",
    "late_work",
    "age_p50",
    "age_p99",
    "age_max",
    "instance_hours",
    "actions",
    "reversals",
]


def test_json_has_the_documented_keys_and_no_policy_beats_the_bound(backtest: CommandLine) -> None:
    result = backtest.json(backtest.trace(bursty(1, 400).tolist()), "--rules", SHIPPED_RULES)
    assert list(result) == ["trace", "arena", "policies", "clairvoyant"]
    assert list(result["trace"]) == ["name", "minutes", "arrivals", "notices"]
    assert list(result["policies"]) == POLICIES
    assert list(result["clairvoyant"]) == ["J_dp", "J_lp", "gap", "actions"]
    for score in result["policies"].values():
        assert list(score) == SCORE
        assert score["regret_lp"] >= 0
    assert result["clairvoyant"]["gap"] >= 0


def test_the_options_set_the_arena(backtest: CommandLine) -> None:
    options = "--instance-rate 12 --dead-time-minutes 2 --age-limit-minutes 4 --switch-cost 3"
    more = "--late-penalty 8 --max-instances 9"
    trace = backtest.trace([20] * 30)
    result = backtest.json(trace, "--rules", SHIPPED_RULES, *options.split(), *more.split())
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
        "metrics": {"demo-demo-backlog": "backlog"},
    }


def test_the_report_lists_every_policy_and_a_conclusion(backtest: CommandLine) -> None:
    code, out, err = backtest.run(NASA, "--rules", SHIPPED_RULES)
    assert (code, err) == (0, "")
    for name in (*POLICIES, "clairvoyant", "lower bound"):
        assert name in out
    assert "Your rules cost" in out
    assert "that a replay does not need: ResourceToScale" in " ".join(out.split())


@pytest.mark.parametrize("suffix", ["png", "html"])
def test_a_plot_is_written_as_png_or_html(backtest: CommandLine, suffix: str) -> None:
    path = backtest.directory / f"plot.{suffix}"
    trace = backtest.trace(bursty(1, 1200).tolist())
    code, _, err = backtest.run(trace, "--rules", SHIPPED_RULES, "--plot", path)
    assert (code, err) == (0, "")
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG" if suffix == "png" else b"<!doctype html>")
    assert len(content) > 20_000


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


def test_an_unwritable_plot_file_is_reported_by_name(backtest: CommandLine) -> None:
    path = backtest.directory / "none" / "plot.png"
    trace = backtest.trace([20] * 30)
    code, _, err = backtest.run(trace, "--rules", SHIPPED_RULES, "--plot", path)
    assert code == 2
    assert "plot.png: the plot cannot be written" in err


def test_the_report_counts_the_faults(backtest: CommandLine) -> None:
    trace = backtest.trace(bursty(4, 600).tolist())
    result = backtest.json(trace, "--rules", SHIPPED_RULES, "--faults", "4")
    assert result["faults"]["seed"] == 4
    assert result["faults"]["samples_dropped"] > 0
    assert result["faults"]["violations"] == 0


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
    assert "Safety rules were broken 30 times" in out


# --- traces that cannot be used ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        ("time,arrivals\n", "no row"),
        ("when,what\nnoon,3\n", "'when,what' has no column of times"),
        ("time,a,b\n2026-03-01T00:00:00Z,3,4\n", "Choose one with --series"),
        (csv_text([3, -4]), "line 3: arrivals '-4' is negative"),
        (csv_text([3, "many"]), "line 3: arrivals 'many' is not a number"),
        (csv_text([3, "inf"]), "line 3"),
        (csv_text([3]) + csv_text([4]).split("\n", 1)[1], "is already on line 2"),
        (csv_text([3, 4], timedelta(hours=1)), "from 1 s to 30 min apart"),
        ("time,arrivals\nyesterday,3\n", "line 2: 'yesterday' is not a time"),
        (b"time,arrivals\n\xff\xfe", "not UTF-8"),
        (csv_text([0] * 50), "Give --instance-rate"),
    ],
)
def test_an_error_in_a_trace_is_reported_with_its_line(
    backtest: CommandLine, text: str | bytes, message: str
) -> None:
    path = backtest.file("bad.csv", text)
    code, out, err = backtest.run(path, "--rules", SHIPPED_RULES)
    assert (code, out) == (2, "")
    assert message in err
    assert "Traceback" not in err


def test_a_missing_trace_file_is_reported_by_name(backtest: CommandLine) -> None:
    code, _, err = backtest.run(backtest.directory / "none.csv", "--rules", SHIPPED_RULES)
    assert code == 2
    assert "none.csv: cannot be read" in err


# --- rules that cannot be used ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def resources(settings:\n", "line 1: SyntaxError"),
        ("\nimport nothing_like_it\n", "line 2: ModuleNotFoundError"),
        ("x = 1\n", "has no function resources(settings)"),
        ("def resources(settings):\n    return 1 / 0\n", "line 2: ZeroDivisionError"),
        ("def resources(settings):\n    return []\n", "declares no resource"),
        ("def resources(settings):\n    return [3]\n", "must be a Resource"),
        ("raise SystemExit(0)\n", "SystemExit"),
        (BACKLOG_RULES.replace('"plan",', '"a plan",'), "must match"),
        (BACKLOG_RULES.replace("[Resource", "2 * [Resource"), "declared 2 times"),
    ],
)
def test_an_error_in_the_rules_file_is_reported_without_a_traceback(
    backtest: CommandLine, text: str, message: str
) -> None:
    rules = backtest.file("rules.py", text)
    code, out, err = backtest.run(backtest.trace([20] * 30), "--rules", rules)
    assert (code, out) == (2, "")
    assert message in err
    assert "Traceback" not in err


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


@pytest.mark.parametrize(
    "arguments",
    [
        ["--instance-rate", "0"],
        ["--instance-rate", "nan"],
        ["--max-instances", "0"],
        ["--age-limit-minutes", "0"],
        ["--switch-cost", "-1"],
        ["--dead-time-minutes", "2.5"],
        ["--plot", "plot.pdf"],
        ["--faults", "x"],
    ],
)
def test_invalid_option_values_are_refused(backtest: CommandLine, arguments: list[str]) -> None:
    trace = backtest.trace([20] * 30)
    code, out, err = backtest.run(trace, "--rules", SHIPPED_RULES, *arguments)
    assert (code, out) == (2, "")
    assert err


TWO_BACKLOGS = BACKLOG_RULES.replace(
    '{"jobs": StorageQueue("jobs")}', '{"jobs": StorageQueue("jobs"), "more": StorageQueue("more")}'
)


def test_learning_the_throughput_costs_little_more_than_a_given_one(backtest: CommandLine) -> None:
    trace = backtest.trace(bursty(4, 600).tolist())

    def cost(*options: str) -> float:
        result = backtest.json(trace, "--rules", SHIPPED_RULES, "--instance-rate", 10, *options)
        return float(result["policies"]["rules"]["J"])

    given, learned, counted = cost(), cost("--learn"), cost("--learn-finished")
    assert counted < 1.05 * given
    assert learned < 1.05 * given


def test_learn_finished_adds_a_metric_of_finished_items(backtest: CommandLine) -> None:
    result = backtest.json(
        backtest.trace([20] * 30),
        "--rules",
        SHIPPED_RULES,
        "--instance-rate",
        12,
        "--learn-finished",
    )
    assert result["arena"]["metrics"] == {"demo-demo-backlog": "backlog", "finished": "finished"}


def test_the_backlog_can_be_limited_to_one_of_several_metrics(backtest: CommandLine) -> None:
    rules = backtest.file("rules.py", TWO_BACKLOGS)
    options = (backtest.trace([20] * 30), "--rules", rules, "--instance-rate", 12)
    both = backtest.json(*options)
    assert any("jobs and more each see the whole backlog" in n for n in both["trace"]["notices"])
    one = backtest.json(*options, "--backlog-metric", "more")
    assert one["arena"]["metrics"] == {"jobs": "0", "more": "backlog"}
    assert not any("whole backlog" in notice for notice in one["trace"]["notices"])
    code, _, complaint = backtest.run(*options, "--backlog-metric", "typo")
    assert code == 2
    assert "--backlog-metric typo: must be one of jobs, more" in complaint


def test_metrics_that_a_trace_cannot_provide_are_named_in_a_notice(backtest: CommandLine) -> None:
    rules = backtest.file(
        "rules.py",
        BACKLOG_RULES.replace(
            '{"jobs": StorageQueue("jobs")}', '{"jobs": StorageQueue("jobs"), "cpu": HubMetric()}'
        ).replace("AppServicePlan,", "AppServicePlan, HubMetric,", 1),
    )
    options = (backtest.trace([20] * 30), "--rules", rules, "--instance-rate", 12)
    (notice,) = [n for n in backtest.json(*options)["trace"]["notices"] if "not in a trace" in n]
    assert notice.startswith("not in a trace: cpu. Rules on these saw zeros")
    named = backtest.json(*options, "--backlog-metric", "cpu")["trace"]["notices"]
    assert not any("not in a trace" in notice for notice in named)
