"""``python -m backtest import-autoscale setting.json``: Azure Monitor's rules as scaling_rules.py.

Reads an autoscale setting as ``az monitor autoscale show``, the REST API, or an ARM template
gives it. https://learn.microsoft.com/azure/azure-monitor/autoscale/autoscale-understanding-settings
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from backtest.autoscale_setting import Converted, convert
from backtest.autoscale_source import written
from backtest.errors import BacktestError
from shared.autoscaling.deciding.validation import problems
from shared.settings import load


def run(arguments: Sequence[str]) -> int:
    """Writes the rules, or prints them; says what could not be carried over."""
    parser = argparse.ArgumentParser(prog="python -m backtest import-autoscale")
    parser.add_argument("setting", type=Path, metavar="SETTING.json")
    parser.add_argument("--output", type=Path, metavar="FILE", help="never over one that is there")
    options = parser.parse_args(arguments)
    converted = convert(_read(options.setting))
    source = written(converted)
    _check(source)
    _put(source, options.output)
    _tell(converted)
    return 0


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise BacktestError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise BacktestError(f"{path}: no JSON: {error}") from error


def _check(source: str) -> None:
    """What is written must be what the app accepts."""
    names: dict[str, Any] = {}  # the text was written just above
    exec(compile(source, "scaling_rules.py", "exec"), names)  # noqa: S102  # nosec B102
    found = problems(names["resources"](load({})))
    if found:
        raise BacktestError("the setting makes rules that the app refuses: " + "; ".join(found))


def _put(source: str, output: Path | None) -> None:
    if output is None:
        sys.stdout.write(source)
        return
    try:
        with output.open("x", encoding="utf-8") as file:
            file.write(source)
    except FileExistsError as error:
        raise BacktestError(f"{output} is there already: name another file") from error
    except OSError as error:
        raise BacktestError(f"{output}: {error.strerror}") from error


def _tell(converted: Converted) -> None:
    for note in converted.notes:
        sys.stderr.write(f"note: {note}\n")
