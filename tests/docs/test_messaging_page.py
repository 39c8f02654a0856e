"""The commands on the messaging page, and the event on the nightly job's, do what they say."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from shared.sampling.blob_paths import hour_of
from shared.trends.datasets.arrivals import decode_arrival

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "messaging.md").read_text(encoding="utf-8")
START, SEND = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
(OUTPUT,) = re.findall(r"```\n(2 message.*?)```", PAGE, re.DOTALL)
PORT = re.compile(r"(?<=127\.0\.0\.1:)\d+")


def test_the_event_on_the_page_of_the_nightly_job_belongs_to_the_day_that_the_page_names() -> None:
    page = (ROOT / "docs" / "nightly-job.md").read_text(encoding="utf-8")
    (event,) = re.findall(r"az storage message put .*? --content '(.*?)'", page, re.DOTALL)
    arrival = decode_arrival(event)
    assert arrival.container == "insights-logs-appevents"
    assert arrival.observed_at == datetime(2026, 3, 1, tzinfo=UTC)


def test_each_path_on_the_page_has_the_time_that_the_page_states() -> None:
    rows = re.findall(r"^\| (`….*) \| (2026-\S+ \S+) \|$", PAGE, re.MULTILINE)
    paths = [(path, time) for cell, time in rows for path in re.findall(r"`(…\S+/\S+)`", cell)]
    assert len(rows) == 9
    for path, time in paths:
        assert hour_of(path) == datetime.fromisoformat(f"{time}+00:00"), path


@pytest.fixture
def bus() -> Iterator[subprocess.Popen[str]]:
    command = [*START.split(), "--port", "0"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as running:
        yield running
        running.kill()


def test_the_messages_that_the_page_sends_arrive_in_the_queue(
    bus: subprocess.Popen[str], tmp_path: Path
) -> None:
    assert bus.stdout is not None
    export = bus.stdout.readline()
    send = SEND.replace("messages.jsonl", str(tmp_path / "messages.jsonl"))
    done = subprocess.run(
        ["sh", "-ec", export + send], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert PORT.sub("", done.stderr + done.stdout) == PORT.sub("", OUTPUT)
    bus.send_signal(signal.SIGINT)
    assert bus.stdout.read() == "jobs: 2 message(s), 0 scheduled\n"
