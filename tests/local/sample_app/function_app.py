"""A function app that follows instructions in its messages, for tests of the local host."""

import asyncio
import json
import logging
from typing import Any

import azure.functions as func

app = func.FunctionApp()
journal: list[dict[str, Any]] = []
running = {"now": 0, "most": 0}
running_tasks: set[asyncio.Task[None]] = set()
logging.warning("during the import")


@app.queue_trigger(arg_name="message", queue_name="%WorkQueue%", connection="AzureWebJobsStorage")
async def work(message: func.QueueMessage) -> None:
    """Record the body and follow its instructions: "seconds" and "fail"."""
    body = message.get_body().decode()
    journal.append({"body": body, "id": message.id, "dequeue_count": message.dequeue_count})
    running["now"] += 1
    running["most"] = max(running.values())
    try:
        await _follow(json.loads(body) if body.startswith("{") else {})
    finally:
        running["now"] -= 1


async def _follow(instructions: dict[str, Any]) -> None:
    await asyncio.sleep(instructions.get("seconds", 0))
    if instructions.get("fail"):
        raise ValueError("told to fail")


@app.queue_trigger(
    arg_name="message", queue_name="%WorkQueue%-poison", connection="AzureWebJobsStorage"
)
def bury(message: func.QueueMessage) -> None:
    """Fail on each message of the poison queue."""
    journal.append({"poison": message.get_body().decode()})
    raise ValueError("poison stays poison")


@app.timer_trigger(arg_name="timer", schedule="0 0 0 1 1 *", run_on_startup=True)
@app.retry(strategy="fixed_delay", max_retry_count="2", delay_interval="00:00:00")
def stubborn(timer: func.TimerRequest, context: func.Context) -> None:
    """Run at start-up and fail until the last retry."""
    attempt = context.retry_context.retry_count
    journal.append({"stubborn": attempt})
    if attempt < 2:
        raise ValueError("not yet")


@app.route(route="items/{id}/{kind?}", methods=["GET", "POST"])
async def item(req: func.HttpRequest) -> func.HttpResponse:
    """Answer with a description of the request."""
    seen = {
        "method": req.method,
        "route": dict(req.route_params),
        "query": dict(req.params),
        "body": req.get_body().decode(),
        "header": req.headers.get("X-Asked"),
    }
    headers = {"X-Answered": "yes", "Set-Cookie": "taste=sweet; Path=/"}
    return func.HttpResponse(
        json.dumps(seen), status_code=201, mimetype="application/json", headers=headers
    )


@app.route(route="items/special", methods=["GET"], auth_level=func.AuthLevel.ADMIN)
def special(req: func.HttpRequest) -> str:
    """Answer with plain text."""
    return "special"


@app.route(route="broken")
def broken(req: func.HttpRequest) -> func.HttpResponse:
    """Fail."""
    raise ValueError("broken on purpose")


@app.route(route="sleep/{seconds}")
async def sleep(req: func.HttpRequest) -> func.HttpResponse:
    """Answer late."""
    journal.append({"asleep": req.route_params["seconds"]})
    running["now"] += 1
    try:
        await asyncio.sleep(float(req.route_params["seconds"]))
    finally:
        running["now"] -= 1
    return func.HttpResponse("slept")


@app.route(route="journal", methods=["GET"])
async def read_journal(req: func.HttpRequest) -> func.HttpResponse:
    """What the other functions recorded."""
    return func.HttpResponse(json.dumps(journal))


@app.route(route="talk", methods=["POST"])
async def talk(req: func.HttpRequest) -> func.HttpResponse:
    """Log from every place from which an app can log."""

    async def within() -> None:
        logging.warning("in a task")

    async def later() -> None:
        await asyncio.sleep(0.2)
        logging.warning("after the end")
        journal.append({"talked": True})

    logging.warning("in the invocation")
    await asyncio.create_task(within())
    await asyncio.to_thread(logging.warning, "in a thread")
    running_tasks.add(asyncio.create_task(later()))
    return func.HttpResponse("said")


@app.route(route="talk-synchronously", methods=["POST"])
def talk_synchronously(req: func.HttpRequest) -> func.HttpResponse:
    """Log from a function that is not async."""
    logging.warning("in a synchronous function")
    return func.HttpResponse("said")
