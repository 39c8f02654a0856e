"""Runs the app's functions once, in a process whose environment is that of the deployed app.

Prints one JSON object: what the collector sent, the actions that were decided, and what went wrong.
"""

import asyncio
import json
import logging
import sys
from typing import Any

import azure.functions as func
from azure.core.exceptions import ResourceNotFoundError

import function_app
from shared.adapters.queues.outbox_sender import queue_service
from shared.autoscaling.measurements import CAPACITY_METRIC


class Problems(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


async def received(queue: str) -> list[str]:
    """The messages of a queue, without the host, which would hand them over."""
    async with queue_service(function_app.app.storage) as service:
        try:
            messages = service.get_queue_client(queue).receive_messages()
            return [message.content async for message in messages]
        except ResourceNotFoundError:
            return []  # The app creates a queue when it first sends something.


async def once() -> dict[str, Any]:
    problems = Problems()
    logging.getLogger("shared").addHandler(problems)
    collected, actions = list[str](), list[str]()
    app: Any = function_app
    try:
        await app.metric_collector(None)
        collected = await received("metrics")
        for text in sorted(collected, key=lambda each: CAPACITY_METRIC not in each):
            await app.scaling_logic(func.QueueMessage(body=text.encode()))
        actions = await received("actions")
        for text in actions:
            await app.scaler(func.QueueMessage(body=text.encode()))
    except Exception as error:
        problems.lines.append(f"{type(error).__name__}: {error}")
    finally:
        await app.app.close()
    return {"collected": collected, "actions": actions, "problems": problems.lines}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(once())))
