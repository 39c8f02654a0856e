"""All app settings, read once from the environment, with all problems in one message. `SECTIONS`
has the tables of docs/settings.md, which `make settings` writes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from shared.settings import connections, fields
from shared.settings.amqp_transport import AMQP_TRANSPORT
from shared.settings.connections import ServiceBusConnection, StorageConnection
from shared.settings.data_sets import DataSetSettings
from shared.settings.fields import Environ, Section, SettingsModel, settings_of
from shared.settings.files import FORMS, NoSettings, read_json, values_of
from shared.settings.ingestion import IngestionSettings
from shared.settings.nightly import NightlySettings
from shared.settings.notifications import NotificationSettings
from shared.settings.scaling import (
    RULES,
    SERVICE_BUS,
    STORAGE,
    ActionSettings,
    RuleSettings,
    Schedules,
    SingleResource,
)
from shared.settings.variables import Variables, ambiguous
from shared.values.redaction import redacted

__all__ = ["Settings", "SettingsError", "SingleResource", "add_file", "load", "parse"]

LOCAL_FILE = Path("local.settings.json")
UNREAD = (
    f"\nNo settings file was read: there is no {LOCAL_FILE} in this folder. Create it, or name a "
    "file with --settings FILE (.local/settings.json while `make run` is running)"
)
DEMO_FOLDER = ".local"
"""While a demo runs, its settings are in this folder."""

T = TypeVar("T")
M = TypeVar("M", bound=SettingsModel)


class SettingsError(Exception):
    """The app cannot start, because of problems in its settings or in scaling_rules.py."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(redacted(problem) for problem in problems)
        lines = "\n".join(f"  - {problem}" for problem in self.problems)
        super().__init__(f"{len(self.problems)} problem(s) in settings and rules:\n{lines}")


@dataclass(frozen=True)
class Settings(DataSetSettings, ActionSettings, RuleSettings, Schedules):
    """All settings, parsed and checked."""

    environ: Environ = fields.whole_environment()
    ingestion: IngestionSettings = fields.group()
    notifications: NotificationSettings = fields.group()
    nightly: NightlySettings = fields.group()

    def single_resource(self) -> SingleResource:
        """The one resource that settings can describe without code. Raises SettingsError."""
        single, problems = _read(SingleResource, self.environ)
        try:
            connections.service_bus_connection(self.environ, SERVICE_BUS.name)
        except ValueError as error:
            problems.append(str(error))
        return _valid(single, problems)

    def storage(self, name: str) -> StorageConnection:
        """The storage connection of that name. Raises SettingsError if it is missing or wrong."""
        return _connection(connections.storage_connection, self.environ, name)

    def service_bus(self, name: str) -> ServiceBusConnection:
        """The Service Bus connection of that name. Raises SettingsError."""
        return _connection(connections.service_bus_connection, self.environ, name)


_plan, _thresholds = settings_of(SingleResource)[:-2], settings_of(SingleResource)[-2:]
_scaled = (STORAGE, SERVICE_BUS, AMQP_TRANSPORT, *_plan)
SECTIONS = (
    Section("The resource to scale", "`metric_collector`", _scaled),
    Section("The default rules", RULES, (*_thresholds, *settings_of(RuleSettings))),
    Section("Schedules and timeouts", "`scaler`", settings_of(Schedules, ActionSettings)),
    Section("Notifications", "`notifier`", settings_of(NotificationSettings)),
    Section("Metrics from Event Hubs", "`metric_ingest`", settings_of(IngestionSettings)),
    Section("Data sets", "`telemetry_arrived`", settings_of(DataSetSettings)),
    Section("Nightly trends", "`trend_runs`", settings_of(NightlySettings)),
)
SETTINGS = {setting.name: setting for section in SECTIONS for setting in section.settings}


def add_file(path: Path) -> None:
    """Add the settings in a file to the environment: those of a local.settings.json, or those of a
    deployed app as Azure lists them. A variable that is already set keeps its value. Raises
    SettingsError."""
    try:
        document = read_json(path)
        values = values_of(document)
    except FileNotFoundError as error:
        of_demo = path.parent.name == DEMO_FOLDER
        todo = "Start the demo with `make run`" if of_demo else "Copy local.settings.json.example"
        raise SettingsError([f"{path}: there is no such file. {todo}, or name another"]) from error
    except NoSettings as error:
        raise SettingsError([f"{path}: {error}"]) from error
    except (OSError, ValueError, RecursionError) as error:
        raise SettingsError([f"{path}: it cannot be read ({error}); {FORMS}"]) from error
    if (writer := writer_of(document)) and not is_running(writer):
        ended = f"{path}: process {writer}, to which its settings lead, has ended"
        raise SettingsError([f"{ended}: start the demo again with `make run`, or delete the file"])
    for name, value in values.items():
        os.environ.setdefault(name, value)


def add_file_or_local(path: Path | None) -> str:
    """Add the settings of the file, or else of local.settings.json if there is one. If not, return
    what to say when settings are missing. Raises SettingsError."""
    if not path and not LOCAL_FILE.exists():
        return UNREAD
    add_file(path or LOCAL_FILE)
    return ""


def has_managed_identity() -> bool:
    """Whether this process runs where App Service offers a managed identity."""
    return "IDENTITY_ENDPOINT" in os.environ


def override(name: str, value: str) -> None:
    """Override a setting for this process only, with an option of the command line."""
    os.environ[name] = value


def writer_of(document: Any) -> int | None:
    """The ID of the process that wrote the settings file; None if the file does not name it."""
    process = document.get("Process") if isinstance(document, dict) else None
    return process if isinstance(process, int) and process > 0 else None


def is_running(process: int) -> bool:
    if os.name != "posix":  # on Windows os.kill would terminate the process
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # a process of another user
    return True


def load(environ: Environ | None = None) -> Settings:
    """The settings of the environment. Raises SettingsError with all problems together."""
    return _valid(*parse(environ))


def parse(environ: Environ | None = None) -> tuple[Settings, list[str]]:
    """The settings and their problems. The default replaces a value that cannot be parsed."""
    variables = Variables(os.environ if environ is None else environ)
    settings, problems = _read(Settings, variables)
    return settings, [*problems, *ambiguous(variables, SETTINGS)]


def _read(model: type[M], environ: Environ) -> tuple[M, list[str]]:
    problems: list[str] = []
    settings = model.read(environ, problems)
    return settings, [redacted(problem) for problem in problems]


def _valid(settings: T, problems: Sequence[str]) -> T:
    if problems:
        raise SettingsError(problems)
    return settings


def _connection(read: Callable[[Environ, str], T], environ: Environ, name: str) -> T:
    try:
        return read(environ, name)
    except ValueError as error:
        raise SettingsError([str(error)]) from None  # its text is not redacted
