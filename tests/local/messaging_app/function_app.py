"""A function app with queue and hub triggers for tests of the local host. It records what it gets.

A body may be a JSON object with instructions: "seconds" to wait, "together" to wait until that many
invocations have run at once, "fail" to fail.
"""

import asyncio
import json
from typing import Any, List  # the worker refuses list[...]

import azure.functions as func

app = func.FunctionApp()
journal: list[dict[str, Any]] = []
running: dict[str, list[Any]] = {"now": [], "most": []}
POLL_SECONDS = 0.01
healed: set[str] = set()
"""Functions that no longer fail."""


async def _follow(name: str, body: str) -> None:
    instructions = json.loads(body) if body.startswith("{") else {}
    if instructions.get("fail") and name not in healed:
        raise ValueError("told to fail")
    running["now"].append(body)
    running["most"] = max(running["most"], list(running["now"]), key=len)
    try:
        while len(running["most"]) < instructions.get("together", 0):  # noqa: ASYNC110
            await asyncio.sleep(POLL_SECONDS)
        await asyncio.sleep(instructions.get("seconds", 0))
    finally:
        running["now"].remove(body)


@app.service_bus_queue_trigger(arg_name="message", queue_name="%PlainQueue%", connection="Bus")
async def plain(message: func.ServiceBusMessage) -> None:
    body = message.get_body().decode()
    journal.append({"plain": body, "message": message})
    await _follow("plain", body)


@app.service_bus_queue_trigger(
    arg_name="message",
    queue_name="working",
    connection="Bus",
    is_sessions_enabled=True,
    data_type=func.DataType.BINARY,
)
async def session(message: func.ServiceBusMessage) -> None:
    body = message.get_body().decode()
    journal.append({"session": message.session_id, "body": body})
    await _follow("session", body)


@app.service_bus_topic_trigger(
    arg_name="message", topic_name="news", subscription_name="mail", connection="Bus"
)
async def subscribed(message: func.ServiceBusMessage) -> None:
    journal.append({"subscribed": message.get_body().decode()})


@app.service_bus_queue_trigger(
    arg_name="message", queue_name="kept", connection="Bus", auto_complete_messages=False
)
async def kept(message: func.ServiceBusMessage) -> None:
    journal.append({"kept": message.get_body().decode()})


@app.event_hub_message_trigger(
    arg_name="events",
    event_hub_name="telemetry",
    connection="Bus",
    cardinality=func.Cardinality.MANY,
    data_type=func.DataType.BINARY,
)
@app.retry(strategy="fixed_delay", max_retry_count="-1", delay_interval="00:00:00")
async def many(events: List[func.EventHubEvent], context: func.Context) -> None:
    bodies = [event.get_body() for event in events]
    journal.append(
        {
            "many": bodies,
            "events": events,
            "metadata": events[0].metadata,
            "retry": context.retry_context.retry_count,
        }
    )
    for body in bodies:
        await _follow("many", body.decode("utf-8", "replace"))


@app.event_hub_message_trigger(
    arg_name="event",
    event_hub_name="telemetry",
    consumer_group="single",
    connection="Bus",
    cardinality=func.Cardinality.ONE,
)
async def one(event: func.EventHubEvent) -> None:
    body = event.get_body().decode("utf-8", "replace")
    journal.append({"one": body, "event": event})
    await _follow("one", body)
