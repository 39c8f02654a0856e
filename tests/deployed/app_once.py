"""Runs the app's functions once, in a process whose environment is that of the deployed app.

Prints one JSON object: what the collector sent, the actions that were decided, the partitions of
the event hub, how many messages were sent to Service Bus, and what went wrong.
"""

import asyncio
import json
import logging
import sys
from typing import Any

import azure.functions as func
from azure.core.exceptions import ResourceNotFoundError

from tests.deployed import trust

trust.this_machine()
import function_app  # noqa: E402
from shared.azure.queues import queue_service  # noqa: E402
from shared.values.measurements import CAPACITY_METRIC  # noqa: E402
from shared.values.messages import Message  # noqa: E402


class Problems(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


class Once:
    """The outcome of each step. A step that fails does not prevent the next one."""

    def __init__(self) -> None:
        self.app: Any = function_app
        self.collected: list[str] = []
        self.actions: list[str] = []
        self.partitions: list[str] = []
        self.sent = 0

    async def scale(self) -> None:
        await self.app.metric_collector(None)
        self.collected = await received("metrics")
        for text in sorted(self.collected, key=lambda each: CAPACITY_METRIC not in each):
            await self.app.scaling_logic(func.QueueMessage(body=text.encode()))
        self.actions = await received("actions")
        for text in self.actions:
            await self.app.scaler(func.QueueMessage(body=text.encode()))

    async def read_hub(self) -> None:
        self.partitions = list(await self.app.app.ingestion.hub.partition_ids())

    async def send(self) -> None:
        sender = self.app.app.data_sets.processing_sender
        self.sent = (await sender.send([Message(b"{}", session_id="s")])).sent


async def received(queue: str) -> list[str]:
    """The messages of a queue, without the host, which would hand them over."""
    async with queue_service(function_app.app.storage) as service:
        try:
            messages = service.get_queue_client(queue).receive_messages()
            return [message.content async for message in messages]
        except ResourceNotFoundError:
            return []  # The app creates a queue when it first sends something.


async def main() -> dict[str, Any]:
    problems, once = Problems(), Once()
    logging.getLogger("shared").addHandler(problems)
    for step in (once.scale, once.read_hub, once.send):
        try:
            await step()
        except Exception as error:
            problems.lines.append(f"{type(error).__name__}: {error}")
    await once.app.app.close()
    return {
        "collected": once.collected,
        "actions": once.actions,
        "partitions": once.partitions,
        "sent": once.sent,
        "problems": problems.lines,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(main())))
