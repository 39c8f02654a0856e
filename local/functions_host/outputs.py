"""Output bindings: writes the values that a function set or returned."""

import json
from typing import Any

from local.functions_host.app_settings import AppSettings
from local.functions_host.functions import RETURN_VALUE, Binding, Function
from local.functions_host.storage_queues import MessageEncoding, StorageQueues, send
from local.functions_host.worker import Outcome

SUPPORTED_OUTPUTS = frozenset({"http", "queue"})


class OutputFailed(Exception):
    """The value of an output binding could not be written, so the invocation failed."""


class Outputs:
    """Writes the outputs of invocations."""

    def __init__(
        self, settings: AppSettings, encoding: MessageEncoding, queues: StorageQueues
    ) -> None:
        self._settings = settings
        self._encoding = encoding
        self._queues = queues

    async def write(self, function: Function, answer: Outcome) -> None:
        """Write all values of an invocation in order. Raises `OutputFailed`."""
        values = [*answer.outputs, (RETURN_VALUE, answer.returned)]
        for name, datum in values:
            binding = function.outputs.get(name)
            if binding is None or binding.kind == "http" or datum is None:
                continue
            await self._write(function, binding, datum)

    async def _write(self, function: Function, binding: Binding, datum: Any) -> None:
        if binding.kind != "queue":
            raise OutputFailed(
                f"output {binding.name}: the local host does not support {binding.kind} outputs"
            )
        name = binding.text("connection")
        connection = self._settings.connection(name, function=function.name)
        queue = self._queues.client(connection, binding.text("queueName"))
        try:
            for body in message_bodies(datum):
                await send(queue, self._encoding.encode(body))
        except Exception as error:
            raise OutputFailed(f"output {binding.name}: {error}") from error


def message_bodies(datum: Any) -> list[bytes]:
    """Split an output value into message bodies, as the host does.

    A list, or a string that is a JSON array, becomes one message for each element. Any other value
    is one message. For a string that is a JSON object, the real host writes an equal document,
    indented.
    """
    if datum.type is None:
        return []
    if datum.type == "bytes":
        return [bytes(datum.value)]
    if datum.type == "list":
        return [_element(each) for each in datum.value]
    if datum.type in ("string", "json"):
        return _text_bodies(str(datum.value))
    return [_element(datum.value)]


def _text_bodies(text: str) -> list[bytes]:
    stripped = text.strip()
    if stripped.startswith("[") and stripped.endswith("]"):
        return [_element(each) for each in json.loads(stripped)]
    if stripped.startswith("{") and stripped.endswith("}"):
        json.loads(stripped)  # The real host parses anything like JSON, and fails if it is invalid.
    return [text.encode()]


def _element(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else json.dumps(value).encode()
