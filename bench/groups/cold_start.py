"""cold_start: CPU time to import the app in a fresh interpreter."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from statistics import median

from bench.measurement import ROOT, Measurement

TIMED = "import time; s = time.process_time(); import {}; print(time.process_time() - s)"
MODULES = ("function_app", "azure.functions")
ENVIRON = {
    "AzureWebJobsStorage": "UseDevelopmentStorage=true",
    "ServiceBusConnection": "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=n;SharedAccessKey=k",
    "SubscriptionId": "00000000-0000-0000-0000-000000000000",
    "ResourceGroup": "group",
    "ResourceToScale": "plan",
    "Topic": "topic",
    "Subscription": "subscription",
    "ProcessingPeriodHours": "24",
    "EventHubConnection__fullyQualifiedNamespace": "127.0.0.1",
    "TrendsSubmitter": "local",
    "TrendsInput": "in",
    "TrendsOutput": "out",
}


def measure(repeats: int = 9) -> Iterator[Measurement]:
    """Import the app with all features switched on, and the Functions library alone."""
    turns = [[_seconds(module) for module in MODULES] for _ in range(repeats)]
    app, library = (median(seconds) for seconds in zip(*turns, strict=True))
    yield Measurement(
        "cold_start.import_app",
        app,
        "s",
        library,
        "≤ 0.6 s",
        "seconds of CPU in a fresh interpreter, files cached; baseline: azure.functions alone, "
        "which every app imports",
    )


def _seconds(module: str) -> float:
    command = [sys.executable, "-c", TIMED.format(module)]
    done = subprocess.run(
        command, cwd=ROOT, env=ENVIRON, capture_output=True, text=True, check=True
    )
    return float(done.stdout)
