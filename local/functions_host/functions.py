"""The functions of an app, as its decorators declare them."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any

from local.functions_host.app_settings import AppSettings
from local.functions_host.errors import HostStartFailed

RETURN_VALUE = "$return"
HTTP_TRIGGER = "httptrigger"
QUEUE_TRIGGER = "queuetrigger"
TIMER_TRIGGER = "timertrigger"
EVENT_HUB_TRIGGER = "eventhubtrigger"
SERVICE_BUS_TRIGGER = "servicebustrigger"
FIXED_DELAY = "fixed_delay"


class Level(StrEnum):
    """The key that an HTTP function requires: none, a function key, or the master key."""

    ANONYMOUS = "anonymous"
    FUNCTION = "function"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Binding:
    """A trigger, input or output, with its kind in lower case and its properties resolved."""

    kind: str
    name: str
    properties: Mapping[str, Any]

    def text(self, key: str, default: str = "") -> str:
        """A property as text; `default` if it is absent."""
        value = self.properties.get(key)
        return default if value is None else str(value)

    def is_true(self, key: str, *, default: bool = False) -> bool:
        """A property as a boolean."""
        return self.text(key, str(default)).lower() == "true"

    @property
    def takes_many(self) -> bool:
        """Whether the function receives batches. By default it receives single messages."""
        return self.text("cardinality").lower() == "many"

    @property
    def takes_bytes(self) -> bool:
        return self.text("dataType").lower() == "binary"


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """A retry decorator, or host.json's `retry`. A `max_retry_count` of -1 means no limit.

    If this host does not support `strategy`, it warns at the start.
    """

    strategy: str
    max_retry_count: int
    delay_seconds: float


@dataclass(frozen=True, slots=True)
class Function:
    """One function with its trigger, inputs and outputs."""

    name: str
    id: str
    trigger: Binding
    inputs: tuple[Binding, ...]
    outputs: Mapping[str, Binding]
    retry: RetryPolicy | None = None


def read_functions(metadata: Iterable[Any], settings: AppSettings) -> tuple[Function, ...]:
    """Read the worker's function metadata, without functions that a setting disables."""
    enabled = (each for each in metadata if not settings.is_disabled(each.name))
    return tuple(_function(each, settings) for each in enabled)


def _function(metadata: Any, settings: AppSettings) -> Function:
    raw = [json.loads(text) for text in metadata.raw_bindings]
    triggers = [each for each in raw if _is_trigger(each)]
    if len(triggers) != 1:
        raise HostStartFailed(
            f"function {metadata.name} has {len(triggers)} triggers; it must have exactly one"
        )

    def binding(properties: Mapping[str, Any]) -> Binding:
        return _binding(properties, settings, metadata.name)

    return Function(
        name=metadata.name,
        id=metadata.function_id,
        trigger=binding(triggers[0]),
        inputs=tuple(binding(each) for each in raw if _is_plain_input(each)),
        outputs={each["name"]: binding(each) for each in raw if _is_output(each)},
        retry=_retry(metadata.retry_options),
    )


def _binding(properties: Mapping[str, Any], settings: AppSettings, function: str) -> Binding:
    resolved = {
        key: settings.resolve(value, function=function) if isinstance(value, str) else value
        for key, value in properties.items()
    }
    return Binding(str(properties["type"]).lower(), str(properties["name"]), resolved)


def _is_trigger(properties: Mapping[str, Any]) -> bool:
    return str(properties["type"]).lower().endswith("trigger")


def _is_output(properties: Mapping[str, Any]) -> bool:
    return str(properties.get("direction", "")).lower() == "out"


def _is_plain_input(properties: Mapping[str, Any]) -> bool:
    return not _is_trigger(properties) and not _is_output(properties)


def _retry(options: Any) -> RetryPolicy | None:
    if options is None:
        return None
    delay: timedelta | None = getattr(options, "delay_interval", None)
    return RetryPolicy(
        str(options.retry_strategy),
        int(options.max_retry_count),
        0.0 if delay is None else delay.total_seconds(),
    )
