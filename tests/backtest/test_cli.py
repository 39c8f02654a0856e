"""Rules of the command line: what it prints, and that bad input is named, never a traceback."""

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


def test_json_has_the_promised_keys_and_nobody_beats_the_bound(backtest: CommandLine) -> None:
    found = backtest.json(backtest.trace(bursty(1, 400).tolist()), "--rules", SHIPPED_RULES)
    assert list(found) == ["trace", "arena", "policies", "clairvoyant"]
    assert list(found["trace"]) == ["name", "minutes", "arrivals", "notices"]
    assert list(found["policies"]) == POLICIES
    assert list(found["clairvoyant"]) == ["J_dp", "J_lp", "gap", "actions"]
    for score in found["policies"].values():
        assert list(score) == SCORE
        assert score["regret_lp"] >= 0
    assert found["clairvoyant"]["gap"] >= 0


def test_the_arena_is_what_the_options_say(backtest: CommandLine) -> None:
    options = "--instance-rate 12 --dead-time-minutes 2 --age-limit-minutes 4 --switch-cost 3"
    more = "--late-penalty 8 --max-instances 9"
    trace = backtest.trace([20] * 30)
    found = backtest.json(trace, "--rules", SHIPPED_RULES, *options.split(), *more.split())
    assert found["arena"] == {
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


def test_the_report_tells_the_same_to_a_person(backtest: CommandLine) -> None:
    code, out, err = backtest.run(NASA, "--rules", SHIPPED_RULES)
    assert (code, err) == (0, "")
    for name in (*POLICIES, "clairvoyant", "lower bound"):
        assert name in out
    assert "Your rules cost" in out
    assert "demo values used: ResourceToScale" in " ".join(out.split())


@pytest.mark.parametrize("suffix", ["png", "html"])
def test_a_plot_is_written(backtest: CommandLine, suffix: str) -> None:
    path = backtest.directory / f"plot.{suffix}"
    trace = backtest.trace(bursty(1, 1200).tolist())
    code, _, err = backtest.run(trace, "--rules", SHIPPED_RULES, "--plot", path)
    assert (code, err) == (0, "")
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG" if suffix == "png" else b"<!doctype html>")
    assert len(content) > 20_000


def test_a_plot_that_cannot_be_written_is_named(backtest: CommandLine) -> None:
    path = backtest.directory / "none" / "plot.png"
    trace = backtest.trace([20] * 30)
    code, _, err = backtest.run(trace, "--rules", SHIPPED_RULES, "--plot", path)
    assert code == 2
    assert "plot.png: the plot cannot be written" in err


def test_faults_are_counted(backtest: CommandLine) -> None:
    trace = backtest.trace(bursty(4, 600).tolist())
    found = backtest.json(trace, "--rules", SHIPPED_RULES, "--faults", "4")
    assert found["faults"]["seed"] == 4
    assert found["faults"]["samples_dropped"] > 0
    assert found["faults"]["violations"] == 0


def test_a_broken_safety_rule_is_exit_code_1(
    backtest: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    minute = Safety.minute

    def breaking(self: Safety, capacity: int, now: datetime, *, changed: bool) -> None:
        minute(self, capacity, now, changed=changed)
        self._break(now, "as a test")

    monkeypatch.setattr(Safety, "minute", breaking)
    trace = backtest.trace([20] * 30)
    code, out, _ = backtest.run(trace, "--rules", SHIPPED_RULES, "--faults", "4")
    assert code == 1
    assert "Safety rules were broken 30 times" in out


# --- traces that cannot be used ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "the file is empty"),
        ("time,arrivals\n", "no row"),
        ("when,what\n2026-03-01T00:00:00Z,3\n", "no column 'time' and 'arrivals'"),
        (csv_text([3, -4]), "line 3: arrivals '-4' is negative"),
        (csv_text([3, "many"]), "line 3: arrivals 'many' is not a number"),
        (csv_text([3, "nan"]), "line 3"),
        (csv_text([3]) + csv_text([4]).split("\n", 1)[1], "stands already on line 2"),
        (csv_text([3, 4], timedelta(minutes=-1)), "Sort the rows by time"),
        (csv_text([3, 4], timedelta(hours=1)), "from 1 s to 30 min apart"),
        ("time,arrivals\nyesterday,3\n", "line 2: 'yesterday' is not a time"),
        (b"time,arrivals\n\xff\xfe", "not UTF-8"),
        (csv_text([0] * 50), "give --instance-rate"),
    ],
)
def test_a_bad_trace_is_named_with_its_line(
    backtest: CommandLine, text: str | bytes, told: str
) -> None:
    path = backtest.file("bad.csv", text)
    code, out, err = backtest.run(path, "--rules", SHIPPED_RULES)
    assert (code, out) == (2, "")
    assert told in err
    assert "Traceback" not in err


def test_a_trace_that_is_not_there_is_named(backtest: CommandLine) -> None:
    code, _, err = backtest.run(backtest.directory / "none.csv", "--rules", SHIPPED_RULES)
    assert code == 2
    assert "none.csv: cannot be read" in err


# --- rules that cannot be used ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "told"),
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
def test_rules_that_cannot_be_used_are_named(backtest: CommandLine, text: str, told: str) -> None:
    rules = backtest.file("rules.py", text)
    code, out, err = backtest.run(backtest.trace([20] * 30), "--rules", rules)
    assert (code, out) == (2, "")
    assert told in err
    assert "Traceback" not in err


def test_one_of_several_resources_has_to_be_chosen(backtest: CommandLine) -> None:
    last = BACKLOG_RULES.rindex("return [")
    two = BACKLOG_RULES[:last] + (
        "from dataclasses import replace\n"
        "    jobs = {'jobs': StorageQueue('jobs')}\n"
        "    return [Resource(n, replace(plan, name=n), jobs, policy) for n in ('one', 'two')]\n"
    )
    rules, trace = backtest.file("rules.py", two), backtest.trace([20] * 30)
    code, _, err = backtest.run(trace, "--rules", rules)
    assert code == 2
    assert "choose one with --resource: one, two" in err
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
def test_options_that_make_no_sense_are_refused(
    backtest: CommandLine, arguments: list[str]
) -> None:
    trace = backtest.trace([20] * 30)
    code, out, err = backtest.run(trace, "--rules", SHIPPED_RULES, *arguments)
    assert (code, out) == (2, "")
    assert err


TWO_BACKLOGS = BACKLOG_RULES.replace(
    '{"jobs": StorageQueue("jobs")}', '{"jobs": StorageQueue("jobs"), "more": StorageQueue("more")}'
)


def test_a_count_of_finished_items_makes_learning_good(backtest: CommandLine) -> None:
    trace = backtest.trace(bursty(4, 600).tolist())

    def cost(*options: str) -> float:
        found = backtest.json(trace, "--rules", SHIPPED_RULES, "--instance-rate", 10, *options)
        return float(found["policies"]["rules"]["J"])

    told, learned, counted = cost(), cost("--learn"), cost("--learn-finished")
    assert told < counted < learned
    assert counted - told < 0.25 * (learned - told)


def test_a_finished_metric_that_is_asked_for_shows_in_what_is_fed(backtest: CommandLine) -> None:
    found = backtest.json(
        backtest.trace([20] * 30),
        "--rules",
        SHIPPED_RULES,
        "--instance-rate",
        12,
        "--learn-finished",
    )
    assert found["arena"]["metrics"] == {"demo-demo-backlog": "backlog", "finished": "finished"}


def test_one_of_several_backlogs_can_be_fed_alone(backtest: CommandLine) -> None:
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


def test_metrics_that_a_trace_does_not_have_are_named(backtest: CommandLine) -> None:
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
