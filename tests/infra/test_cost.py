"""The monthly cost in docs/deployment.md follows from the settings, the templates and the prices.

The prices on the page are assumptions. The tests evaluate the formulas with them.
"""

from __future__ import annotations

import ast
import json
import operator
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from local.functions_host import HostConfig
from local.functions_host.host_json import read_host_json
from local.functions_host.schedule import parse_schedule
from shared.wiring.app import App
from tests.builders import NOW
from tests.infra.bicep import BicepFile
from tests.infra.test_deployment import MONITORING, deployed_settings

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("## What it costs")[2].partition("\n## ")[0]
EXAMPLE: dict[str, str] = json.loads((ROOT / "local.settings.json.example").read_text())["Values"]
HOST: HostConfig = read_host_json(ROOT)
FUNCTIONS = (ROOT / "function_app.py").read_text()
MONTH_SECONDS = 30 * 86_400

EXECUTIONS = re.findall(r"^\| ([^|]+) \| ([^|]*) \| ([\d,]+) \|$", SECTION, re.MULTILINE)
PRICES = re.findall(r"^\| `(\w+)` \| ([^|]+) \| \$?([\d.,]+) \| ([^|]+) \|$", SECTION, re.MULTILINE)
COSTS = re.findall(r"^\| ([^|]+) \| ([^|]+) \| \$([\d.]+) \|$", SECTION, re.MULTILINE)
PRICE = {name: float(value.replace(",", "")) for name, _, value, _ in PRICES}

TIMES, DIVIDED, MINUS = "\N{MULTIPLICATION SIGN}", "\N{DIVISION SIGN}", "\N{MINUS SIGN}"
OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def evaluated(formula: str) -> float:
    """The value of a formula of the page, with the prices of the page."""
    plain = re.sub(r"(?<=\d),(?=\d{3})", "", formula)
    for sign, code in ((TIMES, "*"), (DIVIDED, "/"), (MINUS, "-")):
        plain = plain.replace(sign, code)

    def value(node: ast.expr) -> float:
        match node:
            case ast.BinOp(left=left, op=sign, right=right):
                return OPERATORS[type(sign)](value(left), value(right))
            case ast.Name(id=name):
                return PRICE[name]
            case ast.Constant(value=int() | float() as number):
                return float(number)
        raise ValueError(f"{formula}: not a formula")

    return value(ast.parse(plain, mode="eval").body)


def number(text: str) -> int:
    return int(text.replace(",", ""))


def interval_seconds(setting: str) -> float:
    schedule = parse_schedule(EXAMPLE[setting])
    first = schedule.next_after(NOW)
    return (schedule.next_after(first) - first).total_seconds()


def executions(function: str) -> int:
    return number(next(count for name, _, count in EXECUTIONS if function in name))


def formula_of(cost: str) -> str:
    (formula,) = (formula for name, formula, _ in COSTS if name.startswith(cost))
    return str(formula)


def test_the_executions_follow_from_the_schedules() -> None:
    scheduled = {m[1]: n for _, text, n in EXECUTIONS if (m := re.match(r"`(\w+)`", text))}
    assert set(scheduled) == {"MetricCollectorSchedule", "ReconcilerSchedule", "NotifierSchedule"}
    for setting, count in scheduled.items():
        assert number(count) == MONTH_SECONDS / interval_seconds(setting), setting
    counts = [number(count) for _, _, count in EXECUTIONS]
    assert sum(counts) == 2 * executions("together")


def test_the_scaling_logic_runs_once_for_each_resource_and_collection() -> None:
    resources = App(deployed_settings()).resources
    assert executions("scaling_logic") == len(resources) * executions("metric_collector")


@pytest.mark.parametrize(("cost", "formula", "stated"), COSTS, ids=[name for name, *_ in COSTS])
def test_each_cost_is_the_value_of_its_formula(cost: str, formula: str, stated: str) -> None:
    assert f"{evaluated(formula):.2f}" == stated, cost


def test_the_sums_follow_from_the_costs_that_are_not_optional() -> None:
    always = ("executions", "log alerts", "storage")
    for memory in ("execution time", "the same"):
        total = sum(round(evaluated(formula_of(each)), 2) for each in (memory, *always))
        assert f"**${total:.2f} a month**" in SECTION


def test_every_price_is_named_as_an_assumption_and_used() -> None:
    assert "**The prices are assumptions.**" in SECTION
    assert "| price | of what | assumed | where to look it up |" in SECTION
    used = set(re.findall(r"[a-z]+(?:_[a-z]+)+|operations\b", " ".join(f for _, f, _ in COSTS)))
    saving = re.search(r"which is (ready\S+ ÷ \(.*?\))", SECTION)
    assert saving is not None
    assert set(PRICE) == used | set(re.findall(r"[a-z_]+_[a-z_]+", saving[1]))
    pages = re.findall(r"https://azure\.microsoft\.com/pricing/details/[\w/-]+", SECTION)
    assert len(pages) == len(set(pages)) == 5
    assert re.findall(r"\$\d", SECTION.partition("| price |")[0]) == [], "no price elsewhere"


def test_quantities_in_the_formulas_follow_from_code_and_templates() -> None:
    for memory in ("execution time", "the same", "executions"):
        assert f"{executions('together'):,}" in formula_of(memory)
    assert f"{len(MONITORING.named('alerts').value)} {TIMES} log_alert" in formula_of("log alerts")
    storage = formula_of("storage")
    queues = len(re.findall(r"@(?:scaling|data_sets)\.queue_trigger", FUNCTIONS))
    polls = MONTH_SECONDS / HOST.queues.max_polling_interval_seconds
    assert f"{queues} {TIMES} {polls:,.0f}" in storage
    timers = len(re.findall(r"@scaling\.timer_trigger", FUNCTIONS))
    renewals = MONTH_SECONDS / (HOST.singleton.lock_seconds / 2)
    assert f"{timers} {TIMES} {renewals:,.0f}" in storage
    messages = executions("scaling_logic") + executions("scaler")
    assert f"3 {TIMES} {messages:,}" in storage


def test_the_default_memory_is_the_one_whose_price_is_given_first() -> None:
    default = BicepFile(ROOT / "infra/main.bicep").named("instanceMemoryMB").value
    assert COSTS[0][0].endswith(f"`instanceMemoryMB` {default}")


def test_longer_intervals_save_what_the_page_says() -> None:
    together, collector = executions("together"), executions("metric_collector")
    per_collection = 1 + 1  # the collector, and the message of the resource
    saved = collector / 2 * per_collection / together
    assert f"saves {saved:.0%} of the executions".replace("%", " %", 1) in SECTION


def test_an_always_ready_instance_costs_more_than_the_timers_on_demand() -> None:
    pays_from = evaluated("ready_gb_second / (gb_second - ready_busy_gb_second)")
    busy = 1 / interval_seconds("MetricCollectorSchedule")
    assert f"more than {pays_from:.0%}".replace("%", " %") in SECTION
    assert f"which is {busy:.0%}".replace("%", " %") in SECTION
    assert busy < pays_from
