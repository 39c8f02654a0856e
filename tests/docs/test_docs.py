"""The documents are true: settings are all there, commands run, examples are valid."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from local import settings_reference
from shared import settings
from shared.autoscaling import Observation, ServiceBusQueue, Threshold
from shared.autoscaling.deciding.decide import EntryKind, decide
from shared.autoscaling.deciding.guards import GUARDS
from shared.autoscaling.deciding.validation import problems
from shared.ingestion.decoding.decoding import decode
from shared.notifications.news import NewsKind
from shared.settings import SECTIONS, SETTINGS
from shared.wiring.ingestion import interests_of
from tests.builders import NOW, history, resource, state

ROOT = Path(__file__).parents[2]
README_PATH = ROOT / "README.md"
README = README_PATH.read_text(encoding="utf-8")
RULES = (ROOT / "docs" / "rules.md").read_text(encoding="utf-8")
EVENTS = (ROOT / "docs" / "events.md").read_text(encoding="utf-8")
COMMAND_PAGES = (
    "README.md",
    "docs/first-hour.md",
    "docs/local.md",
    "docs/backtest.md",
    "docs/trends.md",
    "docs/events.md",
    "docs/commands.md",
)
EXAMPLE: dict[str, str] = json.loads((ROOT / "local.settings.json.example").read_text())["Values"]
OF_THE_HOST = {"FUNCTIONS_WORKER_RUNTIME"}
NOT_INSTALLED_HERE = ("func ", "az ")


class Asked(dict[str, str]):
    """An environment that remembers what was asked for."""

    def __init__(self, values: dict[str, str]) -> None:
        super().__init__(values)
        self.keys_asked: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.keys_asked.add(key)
        return super().get(key, default)


def settings_read() -> set[str]:
    environ = Asked(EXAMPLE)
    loaded = settings.load(environ)
    loaded.single_resource()
    loaded.storage("AzureWebJobsStorage")
    by_host = {key for key in environ.keys_asked if "__" in key or key.startswith("AzureWebJobs")}
    return environ.keys_asked - by_host | {"AzureWebJobsStorage"}


def test_every_setting_that_is_read_is_declared_and_no_other() -> None:
    assert SETTINGS.keys() == settings_read()


def test_the_reference_and_the_example_are_what_is_declared() -> None:
    written = "written by `make settings`"
    assert settings_reference.REFERENCE.read_text(encoding="utf-8") == (
        settings_reference.reference()
    ), written
    assert settings_reference.EXAMPLE.read_text(encoding="utf-8") == (
        settings_reference.example()
    ), written


def test_the_example_starts_the_app_with_the_defaults_and_changes_nothing_in_azure() -> None:
    assert set(EXAMPLE) == SETTINGS.keys() | OF_THE_HOST
    given, default = settings.load(EXAMPLE), settings.load({})
    assert replace(given, environ={}, dry_run=False) == replace(default, environ={})
    assert given.dry_run, "who copies it and forgets to think scales nothing"


def test_a_declared_default_is_within_its_bounds() -> None:
    for setting in SETTINGS.values():
        if setting.bounds and setting.default:
            assert setting.bounds.low <= float(setting.default) <= setting.bounds.high, setting.name


def test_a_setting_is_used_by_functions_that_there_are() -> None:
    functions = set(re.findall(r"^async def (\w+)", (ROOT / "function_app.py").read_text(), re.M))
    for section in SECTIONS:
        for setting in section.settings:
            named = re.findall(r"`(\w+)`", setting.used_by or section.used_by)
            assert set(named) <= functions, setting.name


def rows(text: str) -> list[list[str]]:
    """The cells of the tables' rows that are about settings."""
    found = [line for line in text.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in found]


def test_the_readme_names_only_settings_that_there_are() -> None:
    table = README.split("## Settings")[1].split("\n## ")[0]
    named = {name for row in rows(table) for name in re.findall(r"`(\w+)`", row[0])}
    assert named
    assert named <= SETTINGS.keys()


def commands() -> list[str]:
    pages = [(ROOT / page).read_text(encoding="utf-8") for page in COMMAND_PAGES]
    text = "".join(pages).replace("\\\n", " ")
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    return list(dict.fromkeys(line for block in blocks for line in block.splitlines() if line))


@pytest.mark.parametrize("command", commands())
def test_every_command_of_the_pages_exists(command: str) -> None:
    if command.startswith(NOT_INSTALLED_HERE):
        if shutil.which(command.split(maxsplit=1)[0]) is None:
            assert "has not been run" in README, "what cannot be run here is said so"
            assert "nor carried out" in README
        return
    if command.startswith("make "):
        check = ["make", "--dry-run", "--always-make", *command.split()[1:]]
    else:
        check = [*re.sub(r"--minutes \d+", "--minutes 1", command).split(), "--help"]
    done = subprocess.run(check, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


def anchors(page: Path) -> set[str]:
    """The anchors of the headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [README_PATH, *sorted((ROOT / "docs").rglob("*.md"))])
def test_links_lead_somewhere(page: Path) -> None:
    for link, anchor in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", page.read_text(encoding="utf-8")):
        if "://" not in link:
            target = page.parent / link if link else page
            assert target.exists(), f"{page.name}: {link}"
            assert not anchor or anchor in anchors(target), f"{page.name}: {link}#{anchor}"


def test_the_index_names_every_page() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    pages = [page.relative_to(ROOT / "docs") for page in (ROOT / "docs").rglob("*.md")]
    assert [str(page) for page in pages if f"]({page})" not in index] == ["index.md"]


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 150


def python_blocks(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def test_the_rules_of_the_readme_are_valid_and_decide() -> None:
    names: dict[str, Any] = {}
    exec(python_blocks(README)[0], names)
    (declared,) = names["resources"](settings.load(EXAMPLE))
    assert problems([declared]) == []
    busy = resource(policy=declared.policy)
    assert decide(busy, state([200]), NOW).desired == 4
    assert decide(busy, state([0]), NOW).desired == 1
    never_read = replace(busy, metrics={**busy.metrics, "retries": ServiceBusQueue("retries")})
    assert decide(never_read, state([0]), NOW).desired == 2, "in on a queue that nobody has seen"


def test_the_metrics_of_the_page_of_events_are_valid() -> None:
    names: dict[str, Any] = {}
    exec(python_blocks(EVENTS)[0], names)
    pushed = resource("workers", metrics=names["METRICS"])
    assert problems([pushed]) == []
    (example,) = re.findall(r"```json\n(.*?)```", EVENTS, re.DOTALL)
    interests = interests_of([pushed])
    (reading,) = decode(example.encode(), interests).readings
    assert (reading.name, reading.value) == ("jobs", 42)


def test_the_rule_of_the_first_hour_is_valid_and_decides() -> None:
    (declared,) = names_of("first-hour.md")["resources"](settings.load(EXAMPLE))
    assert problems([declared]) == []
    seen = state([200]).with_history("orders", history([200]))
    assert decide(declared, seen, NOW).desired == 4


def test_the_several_plans_are_valid() -> None:
    declared = names_of("several-plans.md")["resources"](settings.load(EXAMPLE))
    assert len(declared) == 2
    assert problems(declared) == []


def test_the_policy_of_the_page_of_extending_decides() -> None:
    policy = names_of("extending.md")["nights_off"]
    declared = resource(policy=policy, metrics={"orders": ServiceBusQueue("orders")})
    assert problems([declared]) == []
    assert decide(declared, state(), NOW).reason


def names_of(page: str) -> dict[str, Any]:
    """What the Python on a page defines."""
    names: dict[str, Any] = {}
    for block in python_blocks((ROOT / "docs" / page).read_text(encoding="utf-8")):
        exec(block, names)
    return names


def test_the_rules_of_the_rules_page_decide() -> None:
    names: dict[str, Any] = {"Observation": Observation, "Threshold": Threshold}
    exec("from shared.autoscaling import *", names)
    blocks = python_blocks(RULES)
    assert len(blocks) == 6
    for block in blocks:
        exec(block, names)
    assert decide(resource(policy=names["by_hour"]), state(), NOW).desired == 5
    assert decide(resource(policy=names["relative"]), state([200] * 5), NOW).desired == 3
    assert decide(resource(policy=names["relative"]), state([10] * 5), NOW).desired == 1
    assert decide(resource(policy=names["relative"]), state(), NOW).desired == 2


@pytest.mark.parametrize(
    ("heading", "kinds"), [("The decision log", EntryKind), ("Notifications", NewsKind)]
)
def test_operations_explains_every_kind(heading: str, kinds: Iterable[str]) -> None:
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    section = page.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    assert set(re.findall(r"^\| `([\w.]+)` \|", section, re.MULTILINE)) == {str(k) for k in kinds}


def test_development_files_are_not_deployed() -> None:
    ignored = set((ROOT / ".funcignore").read_text().split())
    deployed = {"function_app.py", "host.json", "scaling_rules.py", "shared"}
    deployed |= {"requirements.txt"}
    deployed |= {f"requirements-{each}.txt" for each in ("databricks", "sql", "synapse")}
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    top = {line.split("/")[0] for line in tracked.stdout.splitlines()} or deployed
    assert top - ignored == deployed


def test_the_product_runs_on_its_own_package_and_no_other_of_that_name() -> None:
    assert Path(str(settings.__file__)).is_relative_to(ROOT)


def test_the_guards_are_described_in_the_order_in_which_they_are_asked() -> None:
    table = RULES.partition("passes the guards in this order")[2].partition("\n\n`QueueAge`")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.M) == [guard.__name__ for guard in GUARDS]
