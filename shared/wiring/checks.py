"""The settings and the rules, checked together: at start, with one message for all problems."""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from importlib import import_module
from typing import TypeVar

from shared import settings as settings_module
from shared.autoscaling.deciding.validation import connections, needs_hub, problems
from shared.autoscaling.declaring import ServiceBusQueue, ServiceBusSubscription, StorageQueue
from shared.autoscaling.policy import Resource
from shared.datasets.periods import Period
from shared.ingestion.events.handling import Handling, handling_of
from shared.settings import Settings, SettingsError
from shared.settings.ingestion import EVENT_HUB, HANDLER
from shared.settings.slips import slips

T = TypeVar("T")

STORAGE = "AzureWebJobsStorage"
PROCESSING_CONNECTION = "ServiceBusConnection"


@dataclass(frozen=True, slots=True)
class Checked:
    """The settings and what users declare, without a problem."""

    settings: Settings
    resources: Mapping[str, Resource]
    """What scaling_rules.py declares, by name."""

    periods: Sequence[Period] = ()
    outages: tuple[type[Exception], ...] = ()
    handling: Handling | None = None


def check(environ: Mapping[str, str] | None = None) -> Checked:
    """Of these settings, or of those of the process. Raises SettingsError with every problem."""
    loaded, wrong = settings_module.parse(environ)
    before = len(wrong)
    declared = _attempt(wrong, partial(_declared, loaded))
    if len(wrong) == before:  # the rules could be asked: whatever they answered is looked at
        wrong += _attempt(wrong, partial(problems, declared)) or []
    scheduled = _attempt(wrong, partial(periods, loaded))
    if scheduled:
        _attempt(wrong, partial(loaded.service_bus, PROCESSING_CONNECTION))
    named = _attempt(wrong, partial(outages, loaded))
    needed = {(StorageQueue, STORAGE), *connections(declared)}
    connects: Mapping[type, Callable[[str], object]] = {
        StorageQueue: loaded.storage,
        ServiceBusQueue: loaded.service_bus,
        ServiceBusSubscription: loaded.service_bus,
    }
    for kind, name in sorted(needed, key=str):
        _attempt(wrong, partial(connects[kind], name))
    own = _attempt(wrong, partial(handling, loaded))
    if needs_hub(declared) and loaded.ingestion.hub is None:
        wrong.append(
            f"{EVENT_HUB} = '': must be set, for scaling_rules.py declares metrics of an event hub"
        )
    if wrong or declared is None:
        raise SettingsError(dict.fromkeys(wrong))
    resources = {resource.name: resource for resource in declared}
    return Checked(loaded, resources, scheduled or (), named or (), own)


def handling(loaded: Settings) -> Handling | None:
    """What the user's own handler is; None where events are the app's. Raises SettingsError."""
    name = loaded.ingestion.handler
    if not name:
        return None
    try:
        return _handling(name, loaded)
    except Exception as error:  # whatever the import of a user's module raises
        kind = "" if isinstance(error, TypeError) else f"{type(error).__name__}: "
        raise SettingsError([f"{HANDLER} = {name!r}: {kind}{error}"]) from error


def _handling(name: str, loaded: Settings) -> Handling:
    module, _, attribute = name.partition(":")
    declared = handling_of(getattr(import_module(module), attribute))
    if not declared.needs_database:
        return declared
    if not loaded.ingestion.database_url:
        raise TypeError(
            "its own tables are written in the transaction of a database: set "
            "IngestionDatabaseUrl, or declare neither take_part nor tables"
        )
    from shared.adapters.sql.schema import metadata  # noqa: PLC0415  heavy to import

    ours = {table.casefold() for table in metadata.tables}
    if taken := sorted(t for t in getattr(declared.tables, "tables", ()) if t.casefold() in ours):
        raise TypeError(f"table {taken[0]} is one of the app's own: give yours another name")
    return declared


def _attempt(wrong: list[str], step: Callable[[], T]) -> T | None:
    """What the step returns; its problems go to ``wrong`` instead, so that the next step runs."""
    try:
        return step()
    except SettingsError as error:
        wrong += error.problems
    except Exception as error:
        wrong.append(f"scaling_rules.py{_line(error)}: {type(error).__name__}: {error}")
    return None


def _line(error: Exception) -> str:
    """Where in the user's file it went wrong."""
    if isinstance(error, SyntaxError):
        return f", line {error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename.endswith("scaling_rules.py")]
    return f", line {lines[-1]}" if lines else ""


def periods(loaded: Settings) -> Sequence[Period]:
    """The kinds of period that data sets are processed by. Raises SettingsError."""
    delay = timedelta(minutes=loaded.processing_delay_minutes)
    lateness = timedelta(hours=loaded.processing_lateness_hours)
    hours = loaded.processing_period_hours
    try:
        return tuple(Period(timedelta(hours=length), delay, lateness) for length in hours)
    except ValueError as error:
        raise SettingsError([f"ProcessingPeriodHours: {error}"]) from error


def outages(loaded: Settings) -> tuple[type[Exception], ...]:
    """The classes that OutageErrors names. Raises SettingsError."""
    classes = [_exception_class(name) for name in loaded.ingestion.outage_errors]
    if wrong := [each for each in classes if isinstance(each, str)]:
        raise SettingsError(wrong)
    return tuple(each for each in classes if not isinstance(each, str))


def _exception_class(name: str) -> type[Exception] | str:
    """The class, or what is wrong with its name."""
    module, _, of_class = name.rpartition(".")
    try:
        named = getattr(import_module(module), of_class)
    except Exception as error:  # the module may be the user's own
        return f"OutageErrors = {name!r}: {type(error).__name__}: {error}"
    if named is Exception:
        return f"OutageErrors = {name!r}: every error would hold its partition; name the outage's"
    if isinstance(named, type) and issubclass(named, Exception):
        return named
    return f"OutageErrors = {name!r}: must be a class of exceptions"


def _declared(loaded: Settings) -> Sequence[Resource]:
    import scaling_rules  # noqa: PLC0415  the user's file: its errors belong into the one message

    return scaling_rules.resources(loaded)


def warnings(loaded: Settings) -> tuple[str, ...]:
    """Settings whose name is almost one that is read."""
    mentioned = _source_of_the_rules()
    return tuple(
        f"setting {name}: nobody reads it; is {meant} meant?"
        for name, meant in slips(loaded.environ).items()
        if name not in mentioned  # the rules may have settings of their own
    )


def _source_of_the_rules() -> str:
    try:
        return inspect.getsource(sys.modules["scaling_rules"])
    except (KeyError, OSError, TypeError):
        return ""
