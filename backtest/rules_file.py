"""Loads the user's rules from a file like the app does, with demo values for missing settings."""

from __future__ import annotations

import importlib.util
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from backtest.errors import BadRules
from shared.autoscaling import Resource, advice
from shared.autoscaling.acting.actions import ActionTiming
from shared.autoscaling.deciding.validation import problems
from shared.settings import Settings, SettingsError, load, parse

PLACEHOLDERS = {
    "ResourceToScale": "demo-plan",
    "SubscriptionId": "00000000-0000-0000-0000-000000000001",
    "ResourceGroup": "demo",
    "Topic": "demo",
    "Subscription": "demo",
    "ServiceBusConnection": "Endpoint=sb://demo;SharedAccessKeyName=demo;SharedAccessKey=demo",
    "AzureWebJobsStorage": "UseDevelopmentStorage=true",
}

NOT_CONVERTED = "# not converted: "


@dataclass(frozen=True, slots=True)
class Rules:
    """One resource of a rules file, and notices about values that were assumed."""

    resource: Resource
    timing: ActionTiming
    notices: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    """What ``import-autoscale`` has noted in the file as not converted."""


def load_rules(path: Path, name: str | None = None) -> Rules:
    """The resource with that name, or the only one. Raises BadRules with every problem."""
    settings, notices = _settings(path)
    declared = _declared(path, settings)
    wrong = problems(declared)
    if wrong:
        raise BadRules(f"{path}: {len(wrong)} problem(s):\n" + "\n".join(f"  - {p}" for p in wrong))
    resource = _chosen(path, declared, name)
    lines = path.read_text("utf-8", "replace").splitlines()  # comments may have any bytes
    marked = [line.partition(NOT_CONVERTED) for line in lines]
    left_out = tuple(rest for start, mark, rest in marked if mark and not start)
    return Rules(resource, settings.timing.part(ActionTiming), notices, left_out)


def _settings(path: Path) -> tuple[Settings, tuple[str, ...]]:
    environ = parse()[0].environ
    assumed = {k: v for k, v in PLACEHOLDERS.items() if not environ.get(k, "").strip()}
    assumed = {k: v for k, v in assumed.items() if k != "ServiceBusConnection" or not _bus(environ)}
    try:
        settings = load({**environ, **assumed})
    except SettingsError as error:
        raise BadRules(f"{path}: {error}") from error
    if not assumed:
        return settings, ()
    return settings, (
        f"demo values are used for settings that a replay does not need: {', '.join(assumed)}",
    )


def _bus(environ: Any) -> bool:
    return any(key.removeprefix("AzureWebJobs").startswith("ServiceBusConn") for key in environ)


def _declared(path: Path, settings: Settings) -> Sequence[Resource]:
    try:
        declared = _resources_of(path)(settings)
        if not isinstance(declared, list | tuple):
            raise BadRules(f"{path}: {problems(declared)[0]}")
        return declared
    except BadRules:
        raise
    except SettingsError as error:
        raise BadRules(f"{path}: {error}") from error
    except (Exception, SystemExit) as error:
        told = f". {told}" if (told := advice(error)) else ""
        text = f"{path}{_line(error, path)}: {type(error).__name__}: {error}{told}"
        raise BadRules(text) from error


def _resources_of(path: Path) -> Callable[[Settings], Sequence[Resource]]:
    if not path.is_file():
        raise BadRules(f"{path}: the file does not exist. Give the path of a scaling_rules.py.")
    spec = importlib.util.spec_from_file_location("backtested_rules", path)
    if spec is None or spec.loader is None:
        raise BadRules(f"{path}: not a Python file. Its name must end in .py.")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    declare = getattr(module, "resources", None)
    if not callable(declare):
        raise BadRules(f"{path}: has no function resources(settings). See scaling_rules.py.")
    return declare  # type: ignore[no-any-return]  # Its result is checked by the caller.


def _line(error: BaseException, path: Path) -> str:
    """The last line of the user's file in the traceback."""
    if isinstance(error, SyntaxError):
        return f", line {error.lineno}" if error.lineno else ""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f.lineno for f in frames if Path(f.filename) == path or f.filename == str(path)]
    return f", line {lines[-1]}" if lines else ""


def _chosen(path: Path, declared: Sequence[Resource], name: str | None) -> Resource:
    names = ", ".join(resource.name for resource in declared)
    if name is None and len(declared) > 1:
        raise BadRules(f"{path}: declares several resources. Choose one with --resource: {names}")
    for resource in declared:
        if name in (None, resource.name):
            return resource
    raise BadRules(f"{path}: declares no resource {name!r}. It declares: {names}")


def with_policy(rules: Rules, policy: Any) -> Rules:
    return replace(rules, resource=replace(rules.resource, policy=policy))
