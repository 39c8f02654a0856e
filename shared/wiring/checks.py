"""Checks settings and rules together at start and reports all problems in one message."""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from importlib import import_module
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar
from warnings import catch_warnings, simplefilter, warn_explicit

from shared import settings as settings_module
from shared.autoscaling import advice
from shared.autoscaling.deciding.validation import connections, needs_hub, problems, sources
from shared.autoscaling.learning.counts import NAMESPACES_SETTING, namespace_ids, with_counts
from shared.autoscaling.policy import Resource
from shared.azure.invocation import INVOCATION_SECONDS_MAX
from shared.settings import Settings, SettingsError
from shared.settings.connections import HOST_STORAGE
from shared.settings.host_json import HOST_JSON, OVERRIDE, app_folder, host_document, host_value
from shared.settings.ingestion import EVENT_HUB, HANDLER
from shared.settings.misspellings import misspellings
from shared.trends.datasets.periods import Period
from shared.values.calls import error_text
from shared.values.durations import time_span

if TYPE_CHECKING:
    from shared.ingestion.events.handling import Handling

T = TypeVar("T")

ENCODING = "extensions.queues.messageEncoding"
ROUTES, API = "extensions.http.routePrefix", "api"
TIMEOUT, TIMEOUT_SECONDS_MIN = "functionTimeout", INVOCATION_SECONDS_MAX + 30

RULES = "resources"
"""The function that scaling_rules.py must define."""

PROCESSING_CONNECTION = "ServiceBusConnection"


@dataclass(frozen=True, slots=True)
class Checked:
    """The settings and the users' declarations, after all checks have passed."""

    settings: Settings
    resources: Mapping[str, Resource]

    periods: Sequence[Period] = ()
    handling: Handling | None = None
    host_json: Sequence[str] = ()
    """A warning for each value in host.json that limits what the app does or says."""
    renamed: Sequence[str] = ()
    """Names that scaling_rules.py still uses although they were replaced."""


def check(environ: Mapping[str, str] | None = None) -> Checked:
    """Check these settings, or those of the process. Raises SettingsError with every problem."""
    loaded, all_problems = settings_module.parse(environ)
    host_json = _attempt(all_problems, partial(_host_json, loaded)) or ()
    before = len(all_problems)
    renamed: list[str] = []
    declared = _attempt(all_problems, partial(_declared_resources, loaded, renamed))
    if len(all_problems) == before:  # scaling_rules.resources() returned, so check what it returned
        all_problems += _attempt(all_problems, partial(problems, declared)) or []
    data_set_periods = _attempt(all_problems, partial(periods, loaded))
    if data_set_periods:
        _attempt(all_problems, partial(loaded.service_bus, PROCESSING_CONNECTION))
    for service, name in sorted({("storage", HOST_STORAGE), *connections(declared)}):
        connection = loaded.storage if service == "storage" else loaded.service_bus
        _attempt(all_problems, partial(connection, name))
    all_problems += _attempt(all_problems, partial(_wrong_entities, loaded, declared or ())) or []
    own_handling = _attempt(all_problems, partial(handling, loaded))
    if needs_hub(declared) and loaded.ingestion.hub is None:
        all_problems.append(
            f"{EVENT_HUB} = '': must be set, because scaling_rules.py declares metrics "
            "of an event hub"
        )
    if all_problems or declared is None:
        raise SettingsError(dict.fromkeys(all_problems))
    hosts = _bus_hosts(loaded, declared)
    namespaces = namespace_ids(hosts, loaded.service_bus_namespace_ids)
    if loaded.service_bus_counts_from != "namespace" and (unnamed := hosts.keys() - namespaces):
        needed = "ServiceBusCountsFrom = 'resource-manager' needs the resource ID of each namespace"
        names = ", ".join(sorted(unnamed))
        raise SettingsError([f"{NAMESPACES_SETTING} has no namespace of {names}: {needed}"])
    resources = {each.name: with_counts(each, namespaces) for each in declared}
    used = data_set_periods or (), own_handling
    return Checked(loaded, resources, *used, host_json, renamed)


def _wrong_entities(loaded: Settings, declared: Sequence[Resource]) -> list[str]:
    """A problem for each queue or topic that the key of its connection does not allow."""
    used = [(each.connection, each.entity) for each in sources(declared) if each.entity]
    if loaded.processing_period_hours:
        queues = (loaded.processing_queue, loaded.working_queue)
        used += [(PROCESSING_CONNECTION, queue) for queue in queues]
    return [
        f"{name}: its EntityPath is {entity!r}, so its key does not allow {used_entity!r}. Use a "
        "key of the namespace"
        for name, used_entity in used
        if (entity := loaded.service_bus(name).entity).lower() not in ("", used_entity.lower())
    ]


def _bus_hosts(loaded: Settings, declared: Sequence[Resource]) -> Mapping[str, str]:
    """The host name of each Service Bus connection that the rules name."""
    names = {name for service, name in connections(declared) if service == "service_bus"}
    return {name: loaded.service_bus(name).host for name in sorted(names)}


def handling(loaded: Settings) -> Handling | None:
    """The user's own handling of events, if there is one. Raises SettingsError."""
    name = loaded.ingestion.handler
    if not name:
        return None
    try:
        return _handling(name, loaded)
    except BaseException as error:  # the import of a user's module may raise anything
        text = str(error) if isinstance(error, TypeError) else error_text(error)
        raise SettingsError([f"{HANDLER} = {name!r}: {text}"]) from error


def _handling(name: str, loaded: Settings) -> Handling:
    from shared.ingestion.events.handling import handling_of  # noqa: PLC0415  only if it is set

    module, _, attribute = name.partition(":")
    declared = handling_of(getattr(import_module(module), attribute))
    if not declared.needs_database:
        return declared
    if not loaded.ingestion.database_url:
        raise TypeError(
            "its tables need a database transaction: set IngestionDatabaseUrl, "
            "or declare neither write_in_transaction nor tables"
        )
    from shared.ingestion.store.sql_schema import metadata  # noqa: PLC0415  heavy to import

    ours = {table.casefold() for table in metadata.tables}
    if taken := sorted(t for t in getattr(declared.tables, "tables", ()) if t.casefold() in ours):
        raise TypeError(f"the app has a table {taken[0]} of its own: give yours another name")
    return declared


def _attempt(all_problems: list[str], step: Callable[[], T]) -> T | None:
    """The step's result; None if it raises. Its problems are added to ``all_problems``."""
    try:
        return step()
    except SettingsError as error:
        all_problems += error.problems
    except BaseException as error:  # the user's file may raise anything
        all_problems.append(_rules_error(error))
    return None


def _rules_error(error: BaseException) -> str:
    """The text of an error in scaling_rules.py: what is wrong, where, and what to do."""
    text = f"{_file_name()}{_line(error)}: {error_text(error)}"
    if told := advice(error):
        return f"{text}. {told}"
    if isinstance(error, SyntaxError) and error.text:
        file = Path(error.filename or _file_name()).name
        return f"{file}, line {error.lineno}: SyntaxError: {error.msg}: {error.text.strip()}"
    if isinstance(error, ModuleNotFoundError):
        if error.name == "scaling_rules":
            return f"there is no scaling_rules.py here ({Path.cwd()})"
        if (error.name or "").startswith("shared."):
            return f"{text}. shared is a package of the app: give your folder another name"
        remedy = "add the package to requirements/app.in and run `make lock`"
        return f"{text}. Correct the name, or {remedy}"
    if isinstance(error, AttributeError) and error.name == RULES and error.obj is _rules():
        return f"{_file_name()} has no function {RULES}(settings). Define one that returns a list"
    return text


def use_rules(file: Path) -> None:
    """Take the rules from this file instead of scaling_rules.py. Raises SettingsError."""
    loader = SourceFileLoader("scaling_rules", str(file))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    sys.modules[loader.name] = module_from_spec(spec)
    try:
        loader.exec_module(sys.modules[loader.name])
    except BaseException as error:  # the user's file may raise anything
        raise SettingsError([_rules_error(error)]) from error


def _rules() -> ModuleType | None:
    return sys.modules.get("scaling_rules")


def _file_name() -> str:
    return Path(getattr(_rules(), "__file__", None) or "scaling_rules.py").name


def _line(error: BaseException) -> str:
    """The line of scaling_rules.py that raised the error, as part of a sentence."""
    if isinstance(error, SyntaxError):
        return f", line {error.lineno}" if error.lineno else ""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename).name == _file_name()]
    return f", line {lines[-1]}" if lines else ""


def periods(loaded: Settings) -> Sequence[Period]:
    """The periods by which data sets are processed. Raises SettingsError."""
    delay, lateness = loaded.processing_delay, loaded.processing_lateness
    hours = loaded.processing_period_hours
    try:
        return tuple(Period(timedelta(hours=length), delay, lateness) for length in hours)
    except ValueError as error:
        raise SettingsError([f"ProcessingPeriodHours: {error}"]) from error


def _declared_resources(loaded: Settings, renamed: list[str]) -> Sequence[Resource]:
    """The user's declarations. What they use under an earlier name is added to ``renamed``."""
    with catch_warnings(record=True) as raised:
        simplefilter("always", DeprecationWarning)
        import scaling_rules  # noqa: PLC0415  an error in the user's file is reported as a problem

        declared = scaling_rules.resources(loaded)
    for each in raised:
        if each.category is DeprecationWarning and Path(each.filename).name == "scaling_rules.py":
            renamed.append(f"scaling_rules.py, line {each.lineno}: {each.message}")
        else:
            warn_explicit(each.message, each.category, each.filename, each.lineno)
    return declared


def _host_json(loaded: Settings) -> list[str]:
    """A warning for each value in host.json that limits what the app does or says. Raises
    SettingsError if the app could not work with it."""
    folder = app_folder(loaded.environ)
    try:
        document = host_document(folder, loaded.environ) if folder else {}
    except (OSError, ValueError, RecursionError) as error:
        raise SettingsError([f"{HOST_JSON}: {type(error).__name__}: {error}"]) from error
    encoding = host_value(document, ENCODING, "base64")
    if folder and str(encoding).lower() not in ("none", "0"):
        raise SettingsError(
            [
                f"{_place(loaded, ENCODING)}: {ENCODING} is {encoding!r} (if not set, base64): "
                'must be "none", because the app sends plain text to its queues and no function '
                "could read it"
            ]
        )
    told = []
    prefix = host_value(document, ROUTES, API)
    if str(prefix).strip("/").lower() != API:
        place = f"{_place(loaded, ROUTES)}: {ROUTES} is {prefix!r}"
        told.append(f"{place}: links in notifications begin with /{API}/ and will not work")
    timeout = host_value(document, TIMEOUT, "-1")
    with suppress(ValueError):  # the host refuses to start
        unlimited = str(timeout).strip() == "-1"
        if not unlimited and time_span(str(timeout)).total_seconds() < TIMEOUT_SECONDS_MIN:
            told.append(
                f"{_place(loaded, TIMEOUT)}: {TIMEOUT} is {timeout}: must be at least "
                f"{timedelta(seconds=TIMEOUT_SECONDS_MIN)}, because the app waits for up to "
                f"{INVOCATION_SECONDS_MAX:g} s, and the host stops all functions at its limit"
            )
    return told


def _place(loaded: Settings, path: str) -> str:
    """Where the value at the path comes from: the setting that overrides it, or the file."""
    override = f"{OVERRIDE}__{path.replace('.', '__')}"
    return override if loaded.environ.get(override) else HOST_JSON


def warnings(loaded: Settings) -> tuple[str, ...]:
    """A warning for each unknown setting whose name resembles a known one."""
    rules = _source_of_the_rules()
    return tuple(
        f"Unknown setting {name}. Did you mean {known}?"
        for name, known in misspellings(loaded.environ).items()
        if name not in rules  # the rules may read settings of their own
    )


def _source_of_the_rules() -> str:
    try:
        return inspect.getsource(sys.modules["scaling_rules"])
    except (KeyError, OSError, TypeError):
        return ""
