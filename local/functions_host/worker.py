"""Drives the official Python worker library in this process.

Only this module uses `azure_functions_runtime`. The library keeps one app in module globals, so a
process runs one app at a time. After `close`, another app can be loaded.
"""

import json
import re
import secrets
import sys
import uuid
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import azure_functions_runtime
from azure_functions_runtime.bindings.datumdef import Datum
from azure_functions_runtime.native_invocation import invocation_request_native

from local.functions_host.errors import AppNotLoaded, HostStartFailed
from local.functions_host.live import live_invocations

APP_MODULE = "function_app"
_FRAME = re.compile(r'File "(?P<path>.+?)", line (?P<line>\d+)')


class _StatusResult(SimpleNamespace):
    Failure = 0
    Success = 1


class _BindingInfo(SimpleNamespace):
    undefined = 0
    out = 1
    inout = 2


# The worker library builds its answers with protobuf classes that the caller supplies. It only
# sets their fields and compares these constants, so plain namespaces are enough.
_PROTOS = SimpleNamespace(
    BindingInfo=_BindingInfo,
    FunctionMetadataResponse=SimpleNamespace,
    RpcException=SimpleNamespace,
    RpcFunctionMetadata=SimpleNamespace,
    RpcRetryOptions=SimpleNamespace,
    StatusResult=_StatusResult,
    WorkerInitResponse=SimpleNamespace,
    WorkerMetadata=SimpleNamespace,
)


@dataclass(frozen=True, slots=True)
class Invocation:
    """One call of a function: the value of its trigger, and the metadata."""

    trigger_name: str
    trigger: Any
    metadata: Mapping[str, Any] = field(default_factory=dict)
    retry_count: int = 0
    max_retry_count: int = 0
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    traceparent: str = field(
        default_factory=lambda: f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-00"
    )
    """The trace of the invocation. The real host sets the flag only if it exports the trace."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a function: its outputs on success, otherwise the error and its traceback."""

    succeeded: bool
    returned: Any = None
    outputs: Sequence[tuple[str, Any]] = ()
    error: str = ""
    traceback: str = ""


def text_datum(text: str) -> Any:
    """A string in the worker's form."""
    return Datum(text, "string")


def json_datum(json_text: str) -> Any:
    """A JSON document in the worker's form."""
    return Datum(json_text, "json")


def bytes_datum(data: bytes) -> Any:
    """Bytes in the worker's form."""
    return Datum(data, "bytes")


def many_datum(values: Sequence[bytes] | Sequence[str]) -> Any:
    """A batch in the worker's form: all bytes, or all strings."""
    if values and isinstance(values[0], str):
        return Datum(SimpleNamespace(string=list(values)), "collection_string")
    return Datum(SimpleNamespace(bytes=list(values)), "collection_bytes")


def value_datum(value: object) -> Any:
    """A metadata value in the host's form: a string unchanged, anything else as JSON."""
    if isinstance(value, str):
        return text_datum(value)
    return json_datum(json.dumps(value, default=_as_json))


def _as_json(value: object) -> str:
    """The host's form of a value that JSON cannot express."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bytes):
        return b64encode(value).decode()
    return str(value)


def http_datum(request: Mapping[str, Any]) -> Any:
    """An HTTP request in the worker's form."""
    return Datum(request, "http")


class Worker:
    """Loads one app and calls its functions."""

    def __init__(self, app_dir: Path) -> None:
        self._app_dir = app_dir.resolve()
        self._module = _ModulePlace(APP_MODULE, self._app_dir)

    async def load(self) -> Sequence[Any]:
        """Import the app and return the metadata of its functions.

        Raises `AppNotLoaded`, or `HostStartFailed` if the folder contains no app.
        """
        if not (self._app_dir / f"{APP_MODULE}.py").is_file():
            raise HostStartFailed(
                f"{APP_MODULE}.py was not found in {self._app_dir}. Name the app's folder."
            )
        self._module.claim()
        request = _init_request(self._app_dir)
        response = await azure_functions_runtime.worker_init_request(request)
        if response.result.status != _StatusResult.Success:
            raise AppNotLoaded(_import_failure(response.result.exception, self._app_dir))
        azure_functions_runtime.start_threadpool_executor()
        metadata = await azure_functions_runtime.functions_metadata_request(request)
        return metadata.function_metadata_results or ()

    async def call(self, function_id: str, invocation: Invocation) -> Outcome:
        """Call a function. Its errors are returned in the outcome."""
        live_invocations.add(invocation.id)
        try:
            succeeded, returned, outputs, error, traceback = await invocation_request_native(
                invocation.id,
                function_id,
                [(invocation.trigger_name, invocation.trigger)],
                invocation.metadata,
                trace_parent=invocation.traceparent,
                retry_count=invocation.retry_count,
                max_retry_count=invocation.max_retry_count,
            )
        finally:
            live_invocations.discard(invocation.id)
        return Outcome(succeeded, returned, outputs, error or "", traceback or "")

    def close(self) -> None:
        """Unload the app, without waiting for a synchronous function that hangs."""
        executor = azure_functions_runtime.get_threadpool_executor()
        if executor is not None:
            executor.shutdown(wait=False, cancel_futures=True)
        self._module.release()


class _ModulePlace:
    """The app's entries in `sys.modules` and `sys.path`, which `release` restores.

    The app is imported again even if this process has already imported it, because it may have
    read settings that no longer apply.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self._name = name
        self._folder = folder
        self._set_aside: ModuleType | None = None
        self._claimed = False

    def claim(self) -> None:
        self._set_aside = sys.modules.pop(self._name, None)
        sys.path.insert(0, str(self._folder))
        self._claimed = True

    def release(self) -> None:
        if not self._claimed:
            return
        self._claimed = False
        sys.path.remove(str(self._folder))
        sys.modules.pop(self._name, None)
        if self._set_aside is not None:
            sys.modules[self._name] = self._set_aside


def _init_request(app_dir: Path) -> Any:
    worker_init = SimpleNamespace(capabilities={}, function_app_directory=str(app_dir))
    return SimpleNamespace(
        request=SimpleNamespace(worker_init_request=worker_init),
        properties={"host": "127.0.0.1", "protos": _PROTOS},
    )


def _import_failure(exception: Any, app_dir: Path) -> str:
    # The library appends the whole sys.path to import errors. The text before it has the cause.
    reason = str(exception.message).split(". Cannot find module.")[0]
    frames = _FRAME.finditer(str(exception.stack_trace))
    in_app = [each for each in frames if _is_app_code(Path(each["path"]), app_dir)]
    if not in_app or reason.startswith("SettingsError: "):  # This error names its own places.
        reason = reason.removeprefix("SettingsError: ")
        return f"{APP_MODULE}.py cannot be loaded: {reason}"
    place = Path(in_app[-1]["path"]).relative_to(app_dir)
    return f"{APP_MODULE}.py cannot be loaded: {reason} ({place}, line {in_app[-1]['line']})"


def _is_app_code(path: Path, app_dir: Path) -> bool:
    return path.is_relative_to(app_dir) and "site-packages" not in path.parts
