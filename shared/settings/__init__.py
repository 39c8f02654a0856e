"""Every app setting: read once from the environment, with all problems in one message.

A setting is one field of a capability's model, in the modules beside this one. `SECTIONS` are the
tables of docs/settings.md, which `make settings` writes from the same fields.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from shared.settings import connections, fields, scaling
from shared.settings.connections import ServiceBusConnection, StorageConnection
from shared.settings.data_sets import DataSetSettings
from shared.settings.fields import Environ, Section, SettingsModel, settings_of
from shared.settings.ingestion import IngestionSettings
from shared.settings.nightly import NightlySettings
from shared.settings.notifications import NotificationSettings
from shared.settings.scaling import ActionSettings, RuleSettings, Schedules, SingleResource
from shared.values.redaction import redacted

__all__ = ["Settings", "SettingsError", "SingleResource", "add_file", "load", "parse"]

T = TypeVar("T")
M = TypeVar("M", bound=SettingsModel)


class SettingsError(Exception):
    """The app cannot start: the settings or scaling_rules.py are wrong."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(redacted(problem) for problem in problems)
        lines = "\n".join(f"  - {problem}" for problem in self.problems)
        super().__init__(f"{len(self.problems)} problem(s) in settings and rules:\n{lines}")


@dataclass(frozen=True)
class Settings(DataSetSettings, ActionSettings, RuleSettings, Schedules):
    """Every setting, parsed and checked: those of scaling and of data sets, and groups of more."""

    environ: Environ = fields.whole_environment()
    ingestion: IngestionSettings = fields.group(IngestionSettings)
    notifications: NotificationSettings = fields.group(NotificationSettings)
    nightly: NightlySettings = fields.group(NightlySettings)

    def single_resource(self) -> SingleResource:
        """The resource that the settings of the original describe. Raises SettingsError."""
        single, problems = _read(SingleResource, self.environ)
        bus = connections.service_bus_connection(self.environ, scaling.SERVICE_BUS.name)
        if isinstance(bus, str):
            problems.append(bus)
        return _sound(single, problems)

    def storage(self, name: str) -> StorageConnection:
        """The storage connection of that name. Raises SettingsError where it is not one."""
        return _connection(connections.storage_connection(self.environ, name))

    def service_bus(self, name: str) -> ServiceBusConnection:
        """The Service Bus connection of that name. Raises SettingsError where it is not one."""
        return _connection(connections.service_bus_connection(self.environ, name))


_name, _subscription, _group, *_topic, _up, _down = settings_of(SingleResource)
_scaled = (scaling.STORAGE, scaling.SERVICE_BUS, _subscription, _group, _name, *_topic)
_rules = (_up, _down, *settings_of(RuleSettings))
_times = settings_of(Schedules, ActionSettings)
SECTIONS = (
    Section("What is scaled", "`metric_collector`", _scaled),
    Section("The rules that come with it", scaling.RULES, _rules),
    Section("When the functions run, and how patient they are", "`scaler`", _times),
    Section("Telling people", "`notifier`", settings_of(NotificationSettings)),
    Section("Metrics from Event Hubs", "`metric_ingest`", settings_of(IngestionSettings)),
    Section("Data sets", "`telemetry_arrived`", settings_of(DataSetSettings)),
    Section("Nightly trends", "`trend_runs`", settings_of(NightlySettings)),
)
SETTINGS = {setting.name: setting for section in SECTIONS for setting in section.settings}


def add_file(path: Path) -> None:
    """Add the ``Values`` of a local.settings.json to the environment, which counts before them.

    Raises SettingsError where the file is not one.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        pairs = {str(key): str(value) for key, value in document["Values"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        form = 'a JSON object {"Values": {"Name": "text"}} is needed'
        raise SettingsError([f"{path}: {type(error).__name__}: {error}; {form}"]) from error
    if (writer := writer_of(document)) and not is_running(writer):
        ended = f"{path}: what it leads to ended with process {writer}, which wrote it"
        raise SettingsError([f"{ended}: start it again, or delete the file"])
    for key, value in pairs.items():
        os.environ.setdefault(key, value)


def override(name: str, value: str) -> None:
    """An option of the command line stands in for a setting, in this process."""
    os.environ[name] = value


def writer_of(document: Mapping[str, Any]) -> int | None:
    """The process that a settings file leads to, where it says so."""
    process = document.get("Process")
    return process if isinstance(process, int) and process > 0 else None


def is_running(process: int) -> bool:
    if os.name != "posix":  # a signal that is none is a blow there
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # somebody else's
    return True


def load(environ: Environ | None = None) -> Settings:
    """Settings from the environment. Raises SettingsError with every problem at once."""
    return _sound(*parse(environ))


def parse(environ: Environ | None = None) -> tuple[Settings, list[str]]:
    """Settings, and what is wrong with them; defaults stand where a value does not parse."""
    return _read(Settings, os.environ if environ is None else environ)


def _read(model: type[M], environ: Environ) -> tuple[M, list[str]]:
    problems: list[str] = []
    found = model.read(environ, problems)
    return found, [redacted(problem) for problem in problems]


def _sound(settings: T, problems: Sequence[str]) -> T:
    if problems:
        raise SettingsError(problems)
    return settings


def _connection(found: T | str) -> T:
    if isinstance(found, str):
        raise SettingsError([found])
    return found
