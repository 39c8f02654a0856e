"""``python -m tests.docs.commands_reference``: generates docs/commands.md from the commands.

A test fails if the page differs.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, get_args

import typer

from shared.cli.main import app

PAGE = Path(__file__).parents[2] / "docs" / "commands.md"
TEXT = """# Commands

`make settings` generates this page from `shared/cli`. In a clone, run `.venv/bin/python -m shared …`.

- `--settings FILE`, before or after the name of the command, reads settings from a file in the form of `local.settings.json`, which is the default. Environment variables take precedence.
- `--json` prints JSON for programs.
- RESOURCE may be omitted if `scaling_rules.py` declares only one.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | part of it failed or was refused, or a check failed |
| 2 | the settings, the rules or the command are wrong; nothing was done |
| 130 | interrupted by Ctrl-C |

`validate --connect` uses your own identity, not that of the app. To list permissions it needs `Microsoft.Authorization/permissions/read`, which *Reader* includes.

{commands}

## Development

| command | what it does |
|---|---|
| `python -m local` | runs [the demo](local.md) |
| `python -m local.functions_host` | runs a function app without Core Tools; `--app`, `--port`, `--log`, `--keys`, `--drain-seconds`, `--end-with-input` |
| `python -m local.prove` | runs a load with faults against the local system, and writes `.local/proof.html`; `--minutes`, `--part`, `--anonymous`, `--what-if` |
| `python -m local.azurite` | runs the storage emulator on its usual ports |
| `python -m local.amqp_broker` | runs a stand-in of Service Bus; `--queue NAME` |
| `python -m local.http_reference` | writes `docs/http.md` and `docs/openapi.json` |
| `python -m backtest` | replays traffic through the rules: [backtest](backtest.md) |
| `python -m backtest what-if` | says [what other rules would have done](backtest.md#what-if) |
| `python -m backtest tune` | [fits the numbers of a policy](policies.md#fit-the-numbers) |
| `python -m backtest audit` | says what a plan in Azure cost: [migrating](migrating.md#1-audit-nothing-is-deployed) |
| `python -m backtest import-autoscale` | [converts an autoscale setting](migrating.md#convert-a-setting) |
| `python -m bench [GROUP…]` | prints measurements as JSON lines |
| `python -m bench.soak.scaling` | scales many plans within the limits of Azure; `--plans`, `--minutes`, `--kills`, `--hosts`, `--lists` |
| `python -m spark_jobs.check FOLDER` | takes [a first look](trends.md#a-first-look) at exported telemetry |
| `python -m spark_jobs.event_trends` | runs the [nightly job](trends.md) |

`make help` lists the targets of the Makefile.

## Without a clone

A release has a wheel with the commands, the backtest, the nightly job and the types of your rules:

```sh
uv build --wheel --out-dir . CLONE
uvx --from 'app_service_autoscaler-VERSION-py3-none-any.whl[backtest]' autoscaler validate
uvx --from 'app_service_autoscaler-VERSION-py3-none-any.whl[backtest]' autoscaler backtest sample --rules scaling_rules.py
```

The first line builds the wheel from a clone. `sample` is the bundled trace.

| command | the same in a clone |
|---|---|
| `autoscaler …` | `python -m shared …` |
| `autoscaler backtest …` | `python -m backtest …` |
| `autoscaler audit …` | `python -m backtest audit …` |
| `autoscaler event-trends …` | `python -m spark_jobs.event_trends …` |

| extra | brings the packages of |
|---|---|
| `[backtest]` | every command and the backtest |
| `[local]` | the commands without the backtest |
| `[spark]` | the nightly job ([list](../spark_jobs/requirements.txt)) |
| `[sql]` | a database for events, beside another extra |

Rules, settings and modules are those of the current folder. A package `shared` there does not disturb the app, but your rules cannot import it. mypy and pyright know the types from stubs (`shared-stubs`); [test your rules](extending.md#unit-tests) as shown there.
"""  # noqa: E501  a paragraph of Markdown is a line
SHARED = ("--settings", "--json")
"""The options of every command, which the page explains once."""


def page() -> str:
    """The text of docs/commands.md."""
    described = (_described(name, each) for name, each in commands(typer.main.get_command(app)))
    return TEXT.format(commands="\n\n".join(described))


def commands(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """The full name of each command of a group, and the command."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{before}{name} ")
        else:
            yield f"{before}{name}", command


def _described(name: str, command: Any) -> str:
    arguments = [each for each in command.params if not each.opts[0].startswith("--")]
    options = [each for each in command.params if each not in arguments]
    usage = [each.metavar if each.required else f"[{each.metavar}]" for each in arguments]
    usage += [f"{each.opts[0]}{_value(each)}" for each in options if each.required]
    listed = "\n".join(_option(each) for each in options if each.opts[0] not in SHARED)
    parts = (f"## {name}", f"`{' '.join([name, *usage])}`", command.help, listed)
    return "\n\n".join(part for part in parts if part)


def _option(option: Any) -> str:
    told = option.show_default if isinstance(option.show_default, str) else ""
    if not told and option.show_default and option.default:
        told = f"`{getattr(option.default, 'value', option.default)}`"
    default = f"Default: {told}." if told else ""
    meaning = " ".join(each for each in (option.help, default) if each)
    return f"- `{option.opts[0]}{_value(option)}`{': ' * bool(meaning)}{meaning}"


def _value(option: Any) -> str:
    """What follows the name of an option: its metavar, or its choices; nothing for a switch."""
    kind = option.type_descriptor.annotation
    if kind is bool:
        return ""
    is_enum = isinstance(kind, type) and issubclass(kind, Enum)
    choices = [each.value for each in kind] if is_enum else get_args(kind)
    return f" {option.metavar or '|'.join(map(str, choices)) or 'VALUE'}"


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
