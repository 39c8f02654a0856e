"""Each command on a page is one that its program accepts, and names files that exist.

The program parses the command with the command's own options; only what it would do is left out.
``--help`` would not do: a parser accepts everything that stands before it.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer

import backtest.cli
import backtest.options
import bench.__main__
import local.cli
import spark_jobs.options
from appservice_autoscaler.__main__ import PROGRAMS as INSTALLED
from local.openapi import document
from shared.autoscaling import Resource
from shared.cli import command as shared_command
from shared.cli.main import app, main
from shared.settings import SETTINGS
from tests.docs import commands_reference
from tests.docs.test_docs import EXAMPLE, PAGES, ROOT, RULES

WITHOUT_ARGUMENTS = {"local.azurite", "local.http_reference", "local.settings_reference"}
MAKE_VARIABLES = set(
    re.findall(r"\$\((?:if |or )?\$?\(?([A-Z_]+)", (ROOT / "Makefile").read_text())
)
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
SOURCES = {path.name for path in ROOT.iterdir() if path.is_dir() and path.name[0] != "."}
MADE_BY_THE_READER = {"trace.csv", "my_events.py", "imported_rules.py", "month.json",
                      "audited_rules.py"}  # fmt: skip
TOOLS = ("curl ", "az ", "azd ", "func ", "git checkout ", "npx ", "printf ")
"""How a command of a tool begins that is not installed here."""

OURS = re.compile(r"^(?:\w+=\S+ )*(?:\S*/)?(?:(?:python3?|make)\b|(?:uvx --from \S+ )?autoscaler )")
BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)


class Shown(NamedTuple):
    page: str
    text: str

    @property
    def words(self) -> list[str]:
        return shlex.split(self.text.split(" > ")[0])


def lines(block: str) -> list[str]:
    joined = re.sub(r" *\\\n *", " ", block)
    joined = re.sub(r"'[^'\n]*\n[^']*'", "'{}'", joined)  # a JSON document over several lines
    return [line.strip() for line in joined.splitlines() if line.strip()]


def is_command(line: str) -> bool:
    return bool(OURS.match(line)) or line.startswith(TOOLS)


def in_blocks() -> Iterator[Shown]:
    """All lines of a block for a shell, and of a block in which one line is a command."""
    for page in PAGES:
        for language, block in BLOCK.findall(page.read_text(encoding="utf-8")):
            if language == "sh" or (not language and any(map(is_command, lines(block)))):
                yield from (Shown(page.relative_to(ROOT).as_posix(), each) for each in lines(block))


def in_sentences() -> Iterator[Shown]:
    for page in PAGES:
        if "adr" not in page.parts:  # a record may name an old command
            text = BLOCK.sub("", page.read_text(encoding="utf-8"))
            for code in re.findall(r"`([^`\n]+)`", text):
                if is_command(code):
                    yield Shown(page.relative_to(ROOT).as_posix(), code)


SHOWN = list(dict.fromkeys([*in_blocks(), *in_sentences()]))


class Parsed(BaseException):
    """The parser accepted the arguments."""


class Nothing:
    """An app that does nothing. A command that gets this far was understood."""

    def __getattr__(self, name: str) -> Any:
        raise Parsed


def only_parsed(
    action: shared_command.Action, file: Path | None = None, as_json: bool = False
) -> int:
    try:
        action(Nothing()).send(None)
    except Parsed:
        return 0
    except shared_command.Misused as error:
        return 0 if "No such file" in str(error) else 2  # the reader writes the file
    return 0


def parse_shared(arguments: Sequence[str]) -> None:
    assert main(arguments) == 0, arguments


def parse_backtest(arguments: Sequence[str]) -> None:
    if arguments and arguments[0] in backtest.cli.COMMANDS:
        backtest.cli.COMMANDS[arguments[0]](arguments[1:])
    backtest.options.parse(arguments)


PARSERS: dict[str, Callable[[list[str]], object]] = {
    "shared": parse_shared,
    "backtest": parse_backtest,
    "bench": bench.__main__._parse,
    "local": local.cli._parse,
    "spark_jobs.event_trends": lambda given: spark_jobs.options.parse(given, date(2026, 3, 2)),
}


@pytest.fixture
def parsers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs end when their own parser has accepted the arguments."""
    parse = argparse.ArgumentParser.parse_args

    def parse_args(parser: argparse.ArgumentParser, *given: Any) -> argparse.Namespace:
        options: argparse.Namespace = parse(parser, *given)
        if parser.prog.removeprefix("python -m ") in {*PARSERS}:
            return options
        raise Parsed

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_args)
    monkeypatch.setattr(shared_command, "run_action", only_parsed)


def run_parser(module: str, arguments: list[str]) -> None:
    if module in WITHOUT_ARGUMENTS:
        assert arguments == []
        assert importlib.util.find_spec(module)
        return
    if not (parse := PARSERS.get(module)):
        package = importlib.import_module(module)
        has_folder = hasattr(package, "__path__")
        program = importlib.import_module(f"{module}.__main__") if has_folder else package
        if not hasattr(program, "main"):  # only what runs as a program makes the parser
            assert {each for each in arguments if each.startswith("--")} <= options_of(module)
            return
        parse = program.main
    try:
        parse(arguments)
    except Parsed:
        return
    except SystemExit as error:
        pytest.fail(f"python -m {module} {arguments}: exit code {error.code}")
    assert module in PARSERS, "the program has a parser"


@pytest.mark.parametrize(
    "shown", [each for each in SHOWN if OURS.match(each.text)], ids=lambda each: each.text
)
def test_a_program_accepts_its_command_with_these_options(shown: Shown, parsers: None) -> None:
    words = [each for each in shown.words if each not in ("…", "[GROUP…]")]
    if "autoscaler" in words[:4:3]:  # after `uvx --from WHEEL`, or alone
        given = words[words.index("autoscaler") + 1 :]
        program = [INSTALLED[each] for each in given[:1] if each in INSTALLED]
        words = ["python", "-m", *(program or ["shared"]), *given[len(program) :]]
    while re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words = words[1:]
    if words[0] == "make":
        targets = [each for each in words[1:] if "=" not in each]
        assert len(targets) == 1
        assert set(targets) <= TARGETS
        variables = {each.partition("=")[0] for each in words[1:] if "=" in each}
        assert variables <= MAKE_VARIABLES, shown
        return
    assert words[0] in ("python", ".venv/bin/python"), shown
    assert words[1] == "-m"
    module, *arguments = words[2:]
    if " ".join(words) in INCOMPLETE or "…" in shown.text:
        options = {each for each in arguments if each.startswith("--")}
        assert options <= options_of(module)
        return
    run_parser(module, [each.replace("TRACE…", "TRACE") for each in arguments])


INCOMPLETE = {
    f"python -m {each}"
    for each in (
        *("shared", "shared dead-letters", "shared override set", "shared replay", "backtest"),
        *("shared send-messages", "shared dead-letters purge", "backtest tune"),
        *(
            "backtest audit",
            "backtest what-if",
            "backtest import-autoscale",
            "spark_jobs.event_trends",
            "tests.upgrades",
        ),
    )
}
"""Names of commands in a sentence, without what they require."""


def requests() -> list[Shown]:
    return [each for each in SHOWN if each.text.startswith("curl ")]


@pytest.mark.parametrize("shown", requests(), ids=lambda each: each.text)
def test_a_request_of_the_pages_is_one_that_the_app_answers(shown: Shown) -> None:
    words = shown.words
    body = json.loads(words[words.index("--json") + 1]) if "--json" in words else None
    chosen = words[words.index("-X") + 1] if "-X" in words else "POST" if body else "GET"
    address, _, query = words[-1].partition("?")
    path = address.removeprefix("https://MY-APP.azurewebsites.net/api")
    api = document()
    template = next(
        each for each in api["paths"] if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", each), path)
    )
    operation = api["paths"][template][chosen.lower()]
    parameters = {each["name"] for each in operation.get("parameters", ())} | {"code"}
    assert set(re.findall(r"(\w+)=", query)) <= parameters
    if body is not None:
        (content,) = operation["requestBody"]["content"].values()
        schema = content["schema"].get("anyOf", [content["schema"]])[0]
        if "$ref" in schema:
            schema = api["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        assert body.keys() <= schema["properties"].keys()


def test_every_file_of_a_command_exists_or_is_made_by_the_page() -> None:
    missing = []
    for shown in SHOWN:
        page = (ROOT / shown.page).read_text(encoding="utf-8")
        words = [each.split("=", 1)[-1] for each in shown.words]
        for before, word in zip(["", *words], words, strict=False):
            is_file = re.fullmatch(r"[\w./-]+\.(?:py|csv|jsonl?|bicep|txt|sh|zip|png)", word)
            in_the_tree = word.split("/")[0] in SOURCES and "/" in word
            made = before in ("--output", "--plot", "--src") or word in MADE_BY_THE_READER
            written = re.search(
                rf"(?:> |--output ){re.escape(word)}$|`{re.escape(word)}`", page, re.M
            )
            if (in_the_tree or (is_file and not made and not written)) and not (
                (ROOT / word).exists() or word.startswith(".local/")
            ):
                missing.append((shown, word))
    assert missing == []


def test_names_that_commands_give_to_azure_are_those_of_the_app() -> None:
    """Tables, queues, columns and variables."""
    stored = "".join(path.read_text() for path in (ROOT / "shared").rglob("*.py"))
    azd = (ROOT / "infra" / "azd.parameters.json").read_text()
    for shown in SHOWN:
        columns = re.findall(r"--select ([\w ]+)", shown.text)
        columns += re.findall(r" (\w+)=", shown.text.partition("--entity")[2])
        names = {word for each in columns for word in each.split()} - {"PartitionKey", "RowKey"}
        names |= set(re.findall(r"--table-name (\w+)", shown.text))
        unknown = [n for n in names if f'"{n}"' not in stored and f"    {n}: " not in stored]
        assert unknown == [], shown
        assert set(re.findall(r"--queue-name (\w+)", shown.text)) <= set(EXAMPLE.values()), shown
        for variable in re.findall(r"azd env set (\w+)", shown.text):
            assert re.search(rf"\$\{{{variable}\b", azd), shown


COMMANDS = dict(commands_reference.commands(typer.main.get_command(app)))


def test_the_page_of_commands_is_up_to_date() -> None:
    assert commands_reference.PAGE.read_text(encoding="utf-8") == commands_reference.page(), (
        "`make settings` writes it"
    )


def test_the_page_of_commands_has_each_command_and_each_of_its_options() -> None:
    page = commands_reference.page()
    for name, command in COMMANDS.items():
        section = page.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        assert command.help in section
        own = {option for each in command.params for option in each.opts if option[:2] == "--"}
        assert own - {*commands_reference.SHARED} == set(
            re.findall(r"^- `(--[\w-]+)", section, re.M)
        )


def options_of(module: str) -> set[str]:
    """All long options of a program, or of its commands."""
    if module == "shared":
        return {
            option for command in COMMANDS.values() for p in command.params for option in p.opts
        }
    folder = (ROOT / module.replace(".", "/")).with_suffix("")
    files = folder.rglob("*.py") if folder.is_dir() else folder.parent.glob("*.py")
    return set(re.findall(r'"(--[\w-]+)"', "".join(path.read_text() for path in files)))


OUTSIDE = [
    "--py-files",
    "--skipApiVersionCheck",
    "--master",
    "--query",
    "--custom-role-only",
    "--resource-group",
]
PROGRAMS = ("shared", "backtest", "local", "bench", "spark_jobs", "tests")


def test_every_option_in_a_sentence_is_one_of_a_program() -> None:
    known = set(OUTSIDE) | {"--help"} | {each for name in PROGRAMS for each in options_of(name)}
    for page in PAGES:
        text = BLOCK.sub("", page.read_text(encoding="utf-8"))
        codes = [code for code in re.findall(r"`([^`\n]+)`", text) if not is_command(code)]
        named = {
            option for code in codes for option in re.findall(r"(?<![\w-])--[a-zA-Z][\w-]*", code)
        }
        assert named <= known, page.name


def test_every_default_on_a_page_is_that_of_the_setting_or_the_option() -> None:
    found = 0
    for page in PAGES:
        for line in page.read_text(encoding="utf-8").splitlines():
            for given in re.finditer(
                r"\((?:[^()]*; )?default:? ([^)]*)\)|`([^`]*)` \(default\)", line
            ):
                found += 1
                check_default(line, line[: given.start()], given[1] or given[2])
            for name, number in re.findall(r"`([A-Z]\w+)` \((\d[\d,.]*)\b", line):
                if name in SETTINGS:
                    found += 1
                    assert float(SETTINGS[name].default) == float(number.replace(",", "")), line
    assert found > 5


def check_default(line: str, before: str, given: str) -> None:
    values = given.replace("`", "").split(" and ")
    names = re.findall(r"`(\w+)`", line.split("|")[1]) if line.startswith("| `") else []
    if names and set(names) <= SETTINGS.keys():
        assert [SETTINGS[name].default for name in names] == values, line
        return
    option = re.findall(r"`(--[\w-]+)", before)[-1]
    sentence = before.rsplit(". ", maxsplit=1)[-1]
    for name in re.findall(r"`([a-z][a-z -]+)`", sentence):
        (param,) = [each for each in COMMANDS[name].params if option in each.opts]
        shown = param.show_default if isinstance(param.show_default, str) else param.default
        if shown or re.search(r"\d|`", given):  # otherwise words say what happens without it
            assert [str(shown)] == values, line


def test_the_table_of_a_resource_has_the_defaults_of_its_fields() -> None:
    fields = {field.name: field for field in dataclasses.fields(Resource)}
    table = RULES.split("| field | meaning | default |")[1].split("\n\n")[0]
    described = re.findall(r"^\| `(\w+)` \| (.*) \| (.*?) ?\|$", table, re.MULTILINE)
    assert {name for name, _, _ in described} == fields.keys()
    for name, meaning, given in described:
        field = fields[name]
        made = field.default_factory() if callable(field.default_factory) else field.default
        if made is dataclasses.MISSING:
            assert given == "\N{EN DASH}", name
        elif given:
            named = re.match(r"`\w+\((.*?)\)`", meaning)
            values = [getattr(made, each) for each in named[1].split(", ")] if named else [made]
            assert given == ", ".join(str(getattr(v, "value", v)) for v in values), name
