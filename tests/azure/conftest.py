"""The telemetry of one run of all functions, sent to a receiver on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.azure.receiver import Received, Receiver
from tests.bindings.test_ingestion_functions import ENVIRON
from tests.bindings.test_nightly_functions import JOB

ROOT = Path(__file__).parents[2]
SECONDS_MAX = 60


def insights(url: str) -> str:
    """The connection string of a stand-in of Application Insights."""
    key = "00000000-0000-0000-0000-000000000001"
    return f"InstrumentationKey={key};IngestionEndpoint={url}/"


def run(command: list[str], environ: Mapping[str, str]) -> str:
    """Run Python, without the telemetry settings of this machine, and return what it prints."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "APPLICATION"))}
    done = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env={**inherited, **environ},
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as receiver:
        yield receiver


@pytest.fixture(scope="session")
def emitted() -> Received:
    """What the functions emit to both destinations."""
    with Receiver() as receiver:
        settings = {
            **JOB,
            **ENVIRON,
            "APPLICATIONINSIGHTS_CONNECTION_STRING": insights(receiver.url),
            "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url,
            "OTEL_EXPORTER_OTLP_HEADERS": "x-tenant=shop",
            "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=test",
            "OTEL_TRACES_SAMPLER": "always_on",
        }
        run(["-m", "tests.azure.running"], settings)
    return receiver.received
