"""Measurements reach Application Insights: the real exporter sends them to a local receiver."""

from __future__ import annotations

import asyncio
import gzip
import json
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest
from aiohttp import web

SENDING = """
import sys
from opentelemetry import metrics
from shared.adapters.azure.telemetry import NAME, export
gauge = metrics.get_meter(NAME).create_gauge("autoscaler.capacity")
gauge.set(1, {"resource": "before the exporter is there"})
export(sys.argv[1]).join()
gauge.set(7, {"resource": "plan-1"})
metrics.get_meter_provider().force_flush()
"""
KEY = "00000000-0000-0000-0000-000000000001"


@dataclass
class Receiver:
    """A stand-in of Application Insights that keeps the envelopes which the exporter sends."""

    url: str = ""
    envelopes: list[dict[str, object]] = field(default_factory=list)

    async def track(self, request: web.Request) -> web.Response:
        body = await request.read()
        text = gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body
        envelopes = json.loads(text)
        self.envelopes += envelopes
        count = {"itemsReceived": len(envelopes), "itemsAccepted": len(envelopes), "errors": []}
        return web.json_response(count)


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    receiver = Receiver()
    app = web.Application()
    app.router.add_post("/{path:.*}", receiver.track)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    receiver.url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
    yield receiver
    await runner.cleanup()


async def test_measurements_arrive_at_application_insights(receiver: Receiver) -> None:
    connection = f"InstrumentationKey={KEY};IngestionEndpoint={receiver.url}"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SENDING, connection, stderr=asyncio.subprocess.PIPE
    )
    _, errors = await asyncio.wait_for(process.communicate(), 100)
    assert process.returncode == 0, errors.decode()
    sent = json.dumps(receiver.envelopes)
    assert "autoscaler.capacity" in sent
    assert "plan-1" in sent
    assert KEY in sent
