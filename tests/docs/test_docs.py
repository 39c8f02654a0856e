"""The documentation matches the code: settings, commands, links, examples and file names."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from backtest.workload import load_workload
from local import settings_reference
from shared import autoscaling, settings
from shared.autoscaling import (
    HubMetric,
    QueueAge,
    ServiceBusQueue,
    Source,
    Threshold,
    Throughput,
    ValuePerInstance,
)
from shared.autoscaling.deciding.decide import EntryKind, decide
from shared.autoscaling.deciding.guards import GUARDS
from shared.autoscaling.deciding.validation import problems
from shared.autoscaling.messages import decode_action, decode_samples, split
from shared.ingestion.decoding.decode import decode
from shared.ingestion.events.handling import handling_of
from shared.settings import SECTIONS, SETTINGS
from shared.trends.datasets.processing import decode_work
from shared.values.measurements import CAPACITY_METRIC, Window
from shared.values.news import NewsKind
from shared.wiring.ingestion import subscriptions_of
from tests.bindings.test_functions_and_keys import HTTP, OTHERS
from tests.builders import NOW, ago, history, resource, sample, state

ROOT = Path(__file__).parents[2]
README_PATH = ROOT / "README.md"
README = README_PATH.read_text(encoding="utf-8")
RULES = (ROOT / "docs" / "rules.md").read_text(encoding="utf-8")
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "local/FIDELITY.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
EXAMPLE: dict[str, str] = json.loads((ROOT / "local.settings.json.example").read_text())["Values"]
LINKING = [*PAGES, ROOT / "CHANGELOG.md", ROOT / ".github" / "pull_request_template.md"]
SETTINGS_OF_THE_HOST = {"FUNCTIONS_WORKER_RUNTIME"}


def test_the_settings_reference_and_the_example_are_up_to_date() -> None:
    written = "`make settings` writes them"
    assert settings_reference.REFERENCE.read_text(encoding="utf-8") == (
        settings_reference.reference()
    ), written
    assert settings_reference.EXAMPLE.read_text(encoding="utf-8") == (
        settings_reference.example()
    ), written


def test_the_example_has_the_defaults_but_changes_nothing_in_azure() -> None:
    assert set(EXAMPLE) == SETTINGS.keys() | SETTINGS_OF_THE_HOST
    given, default = settings.load(EXAMPLE), settings.load({})
    assert replace(given, environ={}, dry_run=False) == replace(default, environ={})
    assert given.dry_run, "an app with the unchanged example must not scale anything"


def test_a_declared_default_is_within_its_bounds() -> None:
    for setting in SETTINGS.values():
        if setting.bounds and setting.default:
            assert setting.bounds.low <= float(setting.default) <= setting.bounds.high, setting.name


def test_every_function_that_uses_a_setting_exists() -> None:
    for section in SECTIONS:
        for setting in section.settings:
            named = re.findall(r"`(\w+)`", setting.used_by or section.used_by)
            assert set(named) <= {*HTTP, *OTHERS}, setting.name


def anchors(page: Path) -> set[str]:
    """The anchors of the headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", LINKING)
def test_every_relative_link_has_a_target(page: Path) -> None:
    for link, anchor in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", page.read_text(encoding="utf-8")):
        if "://" not in link:
            target = page.parent / link if link else page
            assert target.exists(), f"{page.name}: {link}"
            assert not anchor or anchor in anchors(target), f"{page.name}: {link}#{anchor}"


def test_every_page_that_an_issue_template_names_exists() -> None:
    for form in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"):
        pages = re.findall(r"docs/[\w-]+\.md", form.read_text(encoding="utf-8"))
        assert [page for page in pages if not (ROOT / page).exists()] == [], form.name


FILE_NAME = re.compile(r"`((?:shared|tests|local|spark_jobs|backtest|bench|infra)/[\w/]+\.\w+)`")


def test_every_source_file_that_a_page_names_exists() -> None:
    pages = [README_PATH, *sorted((ROOT / "docs").glob("*.md"))]  # a record may name an old file
    named = {(page.name, file) for page in pages for file in FILE_NAME.findall(page.read_text())}
    assert named
    assert [each for each in sorted(named) if not (ROOT / each[1]).exists()] == []


def test_the_index_names_every_page() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    index += (ROOT / "docs" / "sources.md").read_text(encoding="utf-8")
    pages = [page.relative_to(ROOT / "docs") for page in (ROOT / "docs").rglob("*.md")]
    assert [str(page) for page in pages if f"]({page})" not in index] == ["index.md"]


STATUS = ROOT / "docs" / "status.md"
NEVER_RAN = re.compile(
    r"n[o']t (?:yet )?been (?:run|tried|tested|deployed|compared|observed|measured)|was not tried"
    r"|never been (?:run|tried|tested)|(?:has|have) been deployed to Azure yet",
    re.IGNORECASE,
)


def test_only_the_status_page_lists_what_has_never_run() -> None:
    """Any other page says it in one line, with a link."""
    pages = {*LINKING, ROOT / "local" / "FIDELITY.md"} - {STATUS, ROOT / "CHANGELOG.md"}
    for page in sorted(page for page in pages if page.parent.name != "adr"):
        for line in page.read_text(encoding="utf-8").splitlines():
            assert not NEVER_RAN.search(line) or "status.md" in line, f"{page.name}: {line}"


def test_each_line_of_the_status_says_when_or_what_ran_instead() -> None:
    never, once, always = STATUS.read_text(encoding="utf-8").split("\n## ")[1:]
    lines = [re.findall(r"^- (.*)$", part, re.MULTILINE) for part in (never, once, always)]
    assert [line for line in lines[0] if not re.search(r"\(.+\)", line)] == []
    when = re.compile(r"\*\*(\d{1,2} [A-Z][a-z]+ \d{4}|no date was recorded):\*\* ")
    assert [line for line in lines[1] if not when.match(line)] == []
    assert all(lines)


def python_blocks(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def json_blocks(text: str) -> list[str]:
    return re.findall(r"```json\n(.*?)```", text, re.DOTALL)


def test_the_rules_of_the_readme_are_valid_and_decide() -> None:
    names: dict[str, Any] = {}
    exec(python_blocks(README)[0], names)
    (declared,) = names["resources"](settings.load(EXAMPLE))
    assert problems([declared]) == []
    partly_read = state(capacity=3).with_history("orders", history([150]))
    both_read = partly_read.with_history("retries", history([50]))
    assert decide(declared, both_read, NOW).desired == 4
    held = decide(declared, partly_read, NOW)
    assert (held.desired, held.candidates[0].reason) == (3, "a queue has not been read yet")


SOURCE_PAGES = sorted((ROOT / "docs" / "sources").glob("*.md"))


@pytest.mark.parametrize("page", SOURCE_PAGES, ids=lambda page: page.stem)
def test_the_sources_on_a_page_are_valid_and_the_page_names_their_roles(page: Path) -> None:
    metrics = names_of(f"sources/{page.name}")["metrics"]
    assert problems([resource(metrics=metrics, policy=Threshold(next(iter(metrics)), 2, 1))]) == []
    text = page.read_text(encoding="utf-8")
    read = [source for source in metrics.values() if not source.pushed]
    needed = {f"*{role}*" for source in read for role in source.roles}
    fields = [field for source in read for field in dataclasses.fields(source)]
    needed |= {f"**Connection:** `{f.default}`" for f in fields if f.name == "connection"}
    assert {each for each in needed if each not in text} == set()


def test_every_source_that_comes_with_the_app_has_a_page() -> None:
    blocks = "".join(python_blocks("".join(page.read_text("utf-8") for page in SOURCE_PAGES)))
    shipped = {n for n in autoscaling.__all__ if issubclass_of_source(getattr(autoscaling, n))}
    assert {name for name in shipped if not re.search(rf"\b{name}\(", blocks)} == set()


def issubclass_of_source(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Source) and value is not Source


def test_the_hub_takes_the_sample_on_the_page_about_messages() -> None:
    page = (ROOT / "docs" / "messages.md").read_text(encoding="utf-8")
    policy = ValuePerInstance("orders", 10)
    pushed = resource("workers", metrics={"orders": HubMetric()}, policy=policy)
    example = json_blocks(page)[0]
    for body in (example, f"[{example}]", example + example):
        reading = decode(body.encode(), subscriptions_of([pushed])).readings[-1]
        assert (reading.name, reading.value.value) == ("orders", 42)


def test_the_app_reads_each_message_on_the_page_about_messages() -> None:
    page = (ROOT / "docs" / "messages.md").read_text(encoding="utf-8")
    one, many, of_many_resources, action, data_set = json_blocks(page)
    assert [len(decode_samples(each).metrics) for each in (one, many)] == [1, 2]
    assert split(of_many_resources) == [one.strip().replace(": ", ":").replace(", ", ",")]
    assert (decode_action(action).target, decode_action(action).epoch) == (7, 12)
    assert decode_work(data_set).dataset == "insights-logs-appevents"


def test_the_trace_on_the_page_about_traffic_is_read(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "traffic.md").read_text(encoding="utf-8")
    (trace,) = re.findall(r"```\n(time,arrivals\n.*?)```", page, re.DOTALL)
    (tmp_path / "trace.csv").write_text(trace, encoding="utf-8")
    assert list(load_workload(tmp_path / "trace.csv").arrivals) == [412, 398]


def test_the_rule_of_the_tutorial_is_valid_and_decides() -> None:
    (declared,) = names_of("tutorial.md")["resources"](settings.load(EXAMPLE))
    assert problems([declared]) == []
    seen = state([200]).with_history("orders", history([200]))
    assert decide(declared, seen, NOW).desired == 4


def test_the_decision_in_the_tutorial_has_the_numbers_that_the_default_policy_gives() -> None:
    page = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"^    (backlog \d.*)$", page, re.MULTILINE)
    policy = QueueAge("backlog", until_known=Threshold("backlog", 100, 10))
    known = Throughput(rate_per_instance_minute=60)
    queue = resource(metrics={"backlog": ServiceBusQueue("q")}, policy=policy, throughput=known)
    seen = state().with_history("backlog", history([15, 10, 15, 10]))
    given = decide(queue, seen, NOW).evidence
    assert [each.split()[0] for each in shown.split(", ")] == list(given)


def test_the_rules_for_several_plans_are_valid() -> None:
    declared = names_of("several-plans.md")["resources"](settings.load(EXAMPLE))
    assert len(declared) == 2
    assert problems(declared) == []


def test_the_policy_and_the_handler_on_the_extending_page_are_valid() -> None:
    names = names_of("extending.md")
    names["test_many_orders_scale_out"]()
    assert handling_of(names["handling"]).needs_database
    policy = names["nights_off"]
    declared = resource(policy=policy, metrics={"orders": ServiceBusQueue("orders")})
    assert problems([declared]) == []
    assert decide(declared, state(), NOW).reason


@pytest.mark.parametrize(
    ("reports", "desired"),
    [([0, 0, 0], 2), ([0, 1, 0], 4), ([0, 0, 2], 4), ([], 4)],
    ids=["idle", "one is busy", "the last is busy", "nobody reports"],
)
def test_the_recipe_for_work_in_progress_scales_in_only_if_every_worker_says_that_it_is_idle(
    reports: list[int], desired: int
) -> None:
    names = names_of("scale-in.md")
    declared = names["workers"]
    assert problems([declared]) == []
    assert decode_samples(names["text"]).metrics[0].value.value == 2
    bodies = [names["report"](each, ago(15 * place)) for place, each in enumerate(reports)]
    sent = [metric for body in bodies for metric in decode_samples(body).metrics]
    in_progress = Window(tuple(each.value for each in reversed(sent)))
    known = replace(declared, throughput=Throughput(60, 3))
    empty = state(capacity=4).with_history("orders", history([0] * 31))
    idle = empty.with_history(CAPACITY_METRIC, Window((sample(4, 1800), sample(4))))
    decision = decide(known, idle.with_history("in_progress", in_progress), NOW)
    assert decision.desired == desired, decision.reason


def names_of(page: str) -> dict[str, Any]:
    """The names that the Python blocks of a page define."""
    names: dict[str, Any] = {}
    for block in python_blocks((ROOT / "docs" / page).read_text(encoding="utf-8")):
        exec(block, names)
    return names


def test_the_resource_on_the_page_about_rules_is_valid() -> None:
    (workers,) = names_of("rules.md")["resources"](settings.load(EXAMPLE))
    assert problems([workers]) == []


@pytest.mark.parametrize(
    ("page", "heading", "kinds"),
    [
        ("decision-log.md", "Kinds of entries", EntryKind),
        ("monitoring.md", "Notifications", NewsKind),
    ],
)
def test_a_page_explains_every_kind(page: str, heading: str, kinds: Iterable[str]) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    section = text.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    starts = re.findall(r"^(?:\| |- )(`.*?)(?: \||:)", section, re.MULTILINE)
    explained = [kind for start in starts for kind in re.findall(r"`([\w.]+)`", start)]
    assert sorted(explained) == sorted(str(kind) for kind in kinds)


ELSEWHERE = """
AzureFunctionsJobHost__extensions__eventHubs__transportType __eventHubs__webProxy webProxy
transportType OTEL_TRACES_EXPORTER OfficeBus__clientId OfficeStorage__accountName
OfficeBus__fullyQualifiedNamespace OfficeStorage__clientId blobServiceUri queueServiceUri
__queueServiceUri tableServiceUri virtualNetworkSubnetId Deny provision ShouldHandle npx adlfs
ignoreExceptions s3a stopping_wait_time devcontainer INSTANCE open_jobs avro d12h
T010000Z T05 T12 body_2 WEBJOBS_SHUTDOWN_FILE
WEBSITES_CONTAINER_STOP_TIME_LIMIT
"""
"""Words of other programs, and examples."""

COMPOSED = {"action_ignored", "partition_"}
"""Actions of the log that the code puts together."""


def words_of_the_code() -> set[str]:
    tracked = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(tracked, cwd=ROOT, capture_output=True, text=True, check=True)
    files = [ROOT / name for name in listed.stdout.splitlines() if not name.endswith(".md")]
    texts = [path for path in files if path.suffix not in (".png", ".gz") and path.is_file()]
    own = ROOT / "tests" / "docs"
    words = {
        word
        for path in texts
        if path.parent != own
        for word in re.findall(r"\w+", path.read_text(encoding="utf-8", errors="ignore"))
    }
    return words | {word for path in files for word in re.findall(r"\w+", path.name)}


def test_every_name_in_code_font_is_one_of_the_code() -> None:
    known = words_of_the_code() | set(ELSEWHERE.split()) | COMPOSED
    for page in PAGES:
        if "adr" not in page.parts:  # a record may use an old name
            text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
            named = {
                w
                for c in re.findall(r"`([^`\n]+)`", text)
                for w in re.findall(r"[a-zA-Z_]\w{2,}", c)
            }
            assert named - known == set(), page.name


def test_the_page_of_guards_lists_them_in_the_order_in_which_they_apply() -> None:
    page = (ROOT / "docs" / "guards.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(\w+)` \|", page, re.M) == [guard.__name__ for guard in GUARDS]
