"""Every trigger on one page: decode → flow → encode."""

import logging
from datetime import UTC, datetime
from typing import List  # the worker refuses list[str] in an output
from uuid import uuid4

import azure.functions as func

from shared.adapters.azure.late_lines import invocation, lines
from shared.autoscaling import flows, messages
from shared.autoscaling.flows.poison import PoisonMessage
from shared.datasets import arrivals, processing
from shared.datasets import flows as messaging
from shared.ingestion.events import ingest
from shared.ingestion.events.trigger_batch import parse_batch
from shared.nightly.flows import night
from shared.settings.ingestion import EVENT_HUB
from shared.web import breaker_http, dead_letters_http
from shared.web.exchange import Reply, Request
from shared.wiring import autoscaling as wiring
from shared.wiring import checks as wiring_checks
from shared.wiring import ingestion as wiring_ingestion
from shared.wiring import nightly as wiring_nightly
from shared.wiring import notifications as wiring_notifications
from shared.wiring import web as wiring_dashboard

STORAGE = "AzureWebJobsStorage"
SERVICE_BUS = wiring_checks.PROCESSING_CONNECTION

app = func.FunctionApp()
data_sets = func.Blueprint()  # type: ignore[no-untyped-call]
ingestion = func.Blueprint()  # type: ignore[no-untyped-call]
nightly = func.Blueprint()  # type: ignore[no-untyped-call]
lines.hold()  # no invocation runs yet
settings = wiring.settings()  # wrong settings or rules stop the app here, every problem named
wiring.warn()
logging.getLogger("azure").setLevel(logging.WARNING)


@app.timer_trigger(arg_name="timer", schedule=settings.metric_collector_schedule)
@app.queue_output(arg_name="metrics", queue_name="metrics", connection=STORAGE)
@invocation
async def metric_collector(timer: func.TimerRequest, metrics: func.Out[List[str]]) -> None:
    """Read every source; one message per metric that answered."""
    collection = await flows.metric_collector.run(
        wiring.resources().values(), wiring.reader(), settings.source_timeout_seconds
    )
    metrics.set([messages.encode_metric(metric) for metric in collection.metrics])


@app.queue_trigger(arg_name="message", queue_name="metrics", connection=STORAGE)
@app.queue_output(arg_name="actions", queue_name="actions", connection=STORAGE)
@invocation
async def scaling_logic(message: func.QueueMessage, actions: func.Out[str]) -> None:
    """Merge samples, decide, and order another capacity where the rule wants one."""
    samples = messages.decode_samples(_text(message))
    action = await flows.scaling_logic.run_all(samples, wiring.resources(), wiring.store())
    if action is not None:
        actions.set(messages.encode_action(action))


@app.queue_trigger(arg_name="message", queue_name="actions", connection=STORAGE)
@invocation
async def scaler(message: func.QueueMessage) -> None:
    """Set the capacity of the plan and confirm it."""
    action = messages.decode_action(_text(message))
    await flows.scaler.run(
        action, wiring.resources(), wiring.store(), wiring.control(), wiring.timing()
    )


@app.timer_trigger(arg_name="timer", schedule=settings.reconciler_schedule)
@app.queue_output(arg_name="actions", queue_name="actions", connection=STORAGE)
@invocation
async def reconciler(timer: func.TimerRequest, actions: func.Out[List[str]]) -> None:
    """Send again what got lost between decision and plan; notice changes made by hand."""
    again = await flows.reconciler.run(
        wiring.resources().values(),
        wiring.store(),
        wiring.control(),
        wiring.timing(),
        settings.source_timeout_seconds,
    )
    actions.set([messages.encode_action(action) for action in again])


@app.queue_trigger(arg_name="message", queue_name="metrics-poison", connection=STORAGE)
@invocation
async def metrics_poison(message: func.QueueMessage) -> None:
    """Write down a metric that could not be processed, and why."""
    await flows.poison.run_metric(_poison("metrics", message), wiring.resources(), wiring.store())


@app.queue_trigger(arg_name="message", queue_name="actions-poison", connection=STORAGE)
@invocation
async def actions_poison(message: func.QueueMessage) -> None:
    """Write down an action that could not be carried out, and free its resource."""
    await flows.poison.run_action(
        _poison("actions", message), wiring.resources(), wiring.store(), wiring.timing()
    )


@app.timer_trigger(arg_name="timer", schedule=settings.log_retention_schedule)
@invocation
async def log_retention(timer: func.TimerRequest) -> None:
    """Delete decisions older than the settings say."""
    await flows.retention.run(wiring.resources(), wiring.store(), settings.decision_log_days)


@data_sets.queue_trigger(
    arg_name="message", queue_name=settings.telemetry_queue, connection=STORAGE
)
@invocation
async def telemetry_arrived(message: func.QueueMessage) -> None:
    """A blob of telemetry came: schedule the processing of its data set, once for each period."""
    arrival = arrivals.decode_arrival(_text(message))
    await wiring.queue_check().run()
    sender = wiring.processing_sender()
    await messaging.telemetry_arrived.run(arrival, wiring.periods(), sender, wiring.now())


@data_sets.service_bus_queue_trigger(
    arg_name="message",
    queue_name=settings.working_queue,
    connection=SERVICE_BUS,
    is_sessions_enabled=True,
)
@invocation
async def process_dataset(message: func.ServiceBusMessage) -> None:
    """Process a data set for a period that is over, unless that is done."""
    work, holder = processing.decode_work(message.get_body()), str(message.sequence_number)
    await messaging.process_dataset.run(
        work, holder, wiring.claims(), wiring_nightly.recompute(), wiring.processing_sender()
    )


@data_sets.queue_trigger(
    arg_name="message", queue_name=f"{settings.telemetry_queue}-poison", connection=STORAGE
)
@invocation
async def telemetry_poison(message: func.QueueMessage) -> None:
    """Say what is wrong with an event."""
    messaging.poison.run(_text(message), message.id or "by-hand")


@app.timer_trigger(arg_name="timer", schedule=settings.notifications.schedule)
@invocation
async def notifier(timer: func.TimerRequest) -> None:
    """Tell people what happened and what lasts."""
    await wiring_notifications.notify()


@app.route("dashboard", methods=["GET"])
@invocation
async def dashboard(req: func.HttpRequest) -> func.HttpResponse:
    """The page."""
    from shared.web.page import page  # noqa: PLC0415  for who looks at it only

    return _response(await page(wiring_dashboard.board(), _request(req)))


@app.route("resources/{name?}/{view?}", methods=["GET"])
@invocation
async def resources(req: func.HttpRequest) -> func.HttpResponse:
    """What is scaled, as JSON: resources, resources/NAME, …/decisions, …/history."""
    from shared.web import board  # noqa: PLC0415

    return _response(await board.read(wiring_dashboard.board(), _request(req)))


@app.route("trends", methods=["GET"])
@invocation
async def trends(req: func.HttpRequest) -> func.HttpResponse:
    """Event trends as the nightly job found them."""
    return await _panel("trends")


@app.route("resources/{name}/override", methods=["POST"])
@invocation
async def override(req: func.HttpRequest) -> func.HttpResponse:
    """Put in a word over the rules, or take it back."""
    from shared.web import board  # noqa: PLC0415

    asked, name = _request(req), req.route_params["name"]
    return _response(await board.say(wiring_dashboard.board(), name, asked, uuid4().hex))


@ingestion.event_hub_message_trigger(
    arg_name="events",
    event_hub_name=settings.ingestion.hub_name,
    consumer_group=settings.ingestion.consumer_group,
    connection=EVENT_HUB,
    cardinality=func.Cardinality.MANY,
    data_type=func.DataType.BINARY,
)
@ingestion.retry(strategy="fixed_delay", max_retry_count="-1", delay_interval="00:00:05")
@invocation
async def metric_ingest(events: List[func.EventHubEvent]) -> None:
    """Account for a batch. A failure holds the partition: without the retries it would be lost."""
    batch = parse_batch([event.get_body() for event in events], events[0].metadata)
    await ingest.run(batch.events, wiring_ingestion.pipeline(batch.partition_id))


@ingestion.timer_trigger(arg_name="timer", schedule=settings.ingestion.tail_schedule)
@invocation
async def ingest_tail(timer: func.TimerRequest) -> None:
    """Find what nobody delivered, send what an instance left behind, remove what is old."""
    await wiring_ingestion.effect_retention().run()
    partition_ids = await wiring_ingestion.hub().partition_ids()
    await wiring_ingestion.tail_watch().run(partition_ids, wiring_ingestion.pipeline)


@ingestion.route("breakers", methods=["GET"], auth_level=func.AuthLevel.FUNCTION)
@invocation
async def breakers(req: func.HttpRequest) -> func.HttpResponse:
    """The circuit breakers, with a link to close one that is open."""
    return await _panel("breakers")


@ingestion.route("breakers/{name}", methods=["GET"], auth_level=func.AuthLevel.ANONYMOUS)
@invocation
async def breaker_page(req: func.HttpRequest) -> func.HttpResponse:
    """The state of the breaker, for who holds a link."""
    return _response(await breaker_http.show(_request(req), wiring_ingestion.breaker_controller()))


@ingestion.route("breakers/{name}/close", methods=["POST"], auth_level=func.AuthLevel.ANONYMOUS)
@invocation
async def breaker_close(req: func.HttpRequest) -> func.HttpResponse:
    """Close the breaker, by the token of a link."""
    return _response(await breaker_http.close(_request(req), wiring_ingestion.breaker_controller()))


@ingestion.route("breakers/{name}/status", methods=["GET"], auth_level=func.AuthLevel.FUNCTION)
@invocation
async def breaker_status(req: func.HttpRequest) -> func.HttpResponse:
    """The state of the breaker and a new link, for who has a key of the app."""
    return _response(
        await breaker_http.status(_request(req), wiring_ingestion.breaker_controller())
    )


@ingestion.route("breakers/{name}/isolate", methods=["POST"], auth_level=func.AuthLevel.FUNCTION)
@invocation
async def breaker_isolate(req: func.HttpRequest) -> func.HttpResponse:
    """Stop the consumption of events until a person closes the breaker."""
    return _response(
        await breaker_http.isolate(_request(req), wiring_ingestion.breaker_controller())
    )


@nightly.timer_trigger(arg_name="timer", schedule=settings.nightly.schedule)
@nightly.retry(strategy="fixed_delay", max_retry_count="5", delay_interval="00:05:00")
@invocation
async def nightly_trends(timer: func.TimerRequest) -> None:
    """Ask for yesterday's trends, and for those of days with late data; start what can start."""
    found = settings.nightly
    run_manager = wiring_nightly.run_manager()
    await night.run(
        found.datasets,
        found.late_days,
        run_manager.store,
        wiring_nightly.inputs(),
        run_manager.notifier,
    )
    await run_manager.run_all(found.datasets)


@nightly.timer_trigger(arg_name="timer", schedule=settings.nightly.runs_schedule)
@invocation
async def trend_runs(timer: func.TimerRequest) -> None:
    """Look at the runs: start what is asked for, try again, stop what is stuck, tell who fails."""
    await wiring_nightly.run_manager().run_all(settings.nightly.datasets)


@ingestion.route("dead-letters", methods=["GET"], auth_level=func.AuthLevel.FUNCTION)
@invocation
async def dead_letters(req: func.HttpRequest) -> func.HttpResponse:
    """The events that failed, for who has a key of the app."""
    return _response(
        await dead_letters_http.list_letters(_request(req), wiring_ingestion.dead_letter_service())
    )


@ingestion.route(
    "dead-letters/{partition}/{sequence}", methods=["GET"], auth_level=func.AuthLevel.FUNCTION
)
@invocation
async def dead_letter(req: func.HttpRequest) -> func.HttpResponse:
    """One of them, with its error and body."""
    return _response(
        await dead_letters_http.show(_request(req), wiring_ingestion.dead_letter_service())
    )


@ingestion.route(
    "dead-letters/{partition}/{sequence}/redrive",
    methods=["POST"],
    auth_level=func.AuthLevel.FUNCTION,
)
@invocation
async def dead_letter_redrive(req: func.HttpRequest) -> func.HttpResponse:
    """Put one into the pipeline again, exactly once."""
    return _response(
        await dead_letters_http.redrive(_request(req), wiring_ingestion.dead_letter_service())
    )


@ingestion.route("dead-letters/purge", methods=["POST"], auth_level=func.AuthLevel.FUNCTION)
@invocation
async def dead_letters_purge(req: func.HttpRequest) -> func.HttpResponse:
    """Give up for good what failed long ago."""
    return _response(
        await dead_letters_http.purge_older(_request(req), wiring_ingestion.dead_letter_service())
    )


if settings.ingestion.hub is not None:
    app.register_functions(ingestion)

if settings.processing_period_hours:
    app.register_functions(data_sets)

if settings.nightly.submitter:
    app.register_functions(nightly)


async def _panel(name: str) -> func.HttpResponse:
    from shared.web import board  # noqa: PLC0415

    return _response(await board.read_panel(wiring_dashboard.board(), name))


def _request(request: func.HttpRequest) -> Request:
    return Request(
        query=dict(request.params),
        route=dict(request.route_params),
        headers={key.lower(): value for key, value in request.headers.items()},
        body=request.get_body(),
    )


def _response(reply: Reply) -> func.HttpResponse:
    return func.HttpResponse(
        reply.body,
        status_code=reply.status,
        headers=dict(reply.headers),
        mimetype=reply.content_type,
    )


def _text(message: func.QueueMessage) -> str:
    return message.get_body().decode("utf-8")


def _poison(queue: str, message: func.QueueMessage) -> PoisonMessage:
    """A function started by hand gets a body only, neither an id nor a time."""
    inserted_at = message.insertion_time or datetime.now(UTC)
    return PoisonMessage(queue, message.id or "by-hand", _text(message), inserted_at)
