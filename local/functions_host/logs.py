"""Logs as JSON lines."""

import json
import logging
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from azure_functions_runtime import invocation_id_cv

from local.functions_host.live import live_invocations

logger = logging.getLogger("functions_host")

_FIELDS = "functions_host_fields"


def log_event(level: int, action: str, message: str, **fields: Any) -> None:
    """Log `message` with a machine-readable `action` and further fields."""
    logger.log(level, message, extra={_FIELDS: {"action": action, **fields}})


def configure_logging(log_file: Path | None = None) -> None:
    """Send all log lines, including those of the functions, to a file or to standard error."""
    handler = logging.FileHandler(log_file, encoding="utf-8") if log_file else None
    logging.basicConfig(level=logging.INFO, handlers=[handler or logging.StreamHandler()])
    for each in logging.getLogger().handlers:
        each.setFormatter(JsonLines())
        each.addFilter(arrives)
    logging.getLogger("azure").setLevel(logging.WARNING)
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
    # The worker library also logs each failed invocation. One line for a failure is enough.
    logging.getLogger("azure.functions").setLevel(logging.CRITICAL)


_OWN_LOGGERS = ("functions_host", "local.")
_THREADS_OF_APPS = ("asyncio_", "Thread-")  # how Python names those of `to_thread` and `Thread`


def arrives(record: logging.LogRecord) -> bool:
    """Whether the real host would keep this line of the app.

    It drops lines that are logged while no invocation runs: during the import, in a task that
    outlives its invocation, and in a thread that the app has started, which its worker cannot
    attribute. Lines of the local host and of the stand-ins are kept.
    """
    if record.name.startswith(_OWN_LOGGERS):
        return True
    in_thread = threading.current_thread().name.startswith(_THREADS_OF_APPS)
    return invocation_id_cv.get() in live_invocations and not in_thread


class JsonLines(logging.Formatter):
    """Formats each record, including its traceback, as one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's line."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "invocation_id": invocation_id_cv.get(),
            "traceback": self.formatException(record.exc_info) if record.exc_info else None,
            **getattr(record, _FIELDS, {}),
        }
        return json.dumps({key: value for key, value in line.items() if value is not None})
