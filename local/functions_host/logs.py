"""Logs as JSON lines: one line for each thing that happened."""

import json
import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from azure_functions_runtime import invocation_id_cv

logger = logging.getLogger("functions_host")

_FIELDS = "functions_host_fields"


def log_event(level: int, action: str, message: str, **fields: Any) -> None:
    """Log `message` with a machine-readable `action` and what belongs to it."""
    logger.log(level, message, extra={_FIELDS: {"action": action, **fields}})


def configure_logging(log_file: Path | None = None) -> None:
    """Send every log line, the functions' own included, to a file or to standard error."""
    handler = logging.FileHandler(log_file, encoding="utf-8") if log_file else None
    logging.basicConfig(level=logging.INFO, handlers=[handler or logging.StreamHandler()])
    for each in logging.getLogger().handlers:
        each.setFormatter(JsonLines())
    logging.getLogger("azure").setLevel(logging.WARNING)
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
    # The worker library logs each failed invocation too: one line a failure is enough.
    logging.getLogger("azure.functions").setLevel(logging.CRITICAL)


class JsonLines(logging.Formatter):
    """One JSON object a record, tracebacks included."""

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
