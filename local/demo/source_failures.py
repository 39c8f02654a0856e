"""Counts the metric sources that could not be read: an app that sees nothing has not run well."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

COLLECTOR = "shared.autoscaling.flows.metric_collector"


class SourceFailures(logging.Handler):
    """How many there were, by the ``action`` that the collector tells."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += getattr(record, "action", "") == "source_failed"


@contextmanager
def counted_source_failures() -> Iterator[SourceFailures]:
    failures, logger = SourceFailures(), logging.getLogger(COLLECTOR)
    logger.addHandler(failures)
    try:
        yield failures
    finally:
        logger.removeHandler(failures)
