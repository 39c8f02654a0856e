"""Every trigger on one page: decode → flow → encode."""

import logging
from collections.abc import Awaitable, Callable
from typing import List  # the worker refuses list[str] in an output
from uuid import uuid4

import azure.functions as func

from shared.adapters.azure.deferred_log import invocation, lines
from shared.autoscaling import flows, messages
from shared.autoscaling.flows.poison import PoisonMessage
from shared.datasets import arrivals, processing
from shared.datasets import flows as dataset_flows
from shared.ingestion.events import ingest
from shared.ingestion.events.trigger_batch import parse_batch
from shared.ingestion.operating.breaker import BreakerController
from shared.nightly.flows.demand import demand_nightly
from shared.notifications import flow as notification_flow
from shared.settings.ingestion import EVENT_HUB
from shared.web import board, breaker_http, dead_letters_http
from shared.web.dead_letters_http import DeadLetterService
from shared.web.http import Reply, Request
from shared.wiring.app import App
from shared.wiring.checks import PROCESSING_CONNECTION as SERVICE_BUS
from shared.wiring.checks import STORAGE

functions = func.FunctionApp()
data_sets = func.Blueprint()  # type: ignore[no-untyped-call]
ingestion = func.Blueprint()  # type: ignore[no-untyped-call]
nightly = func.Blueprint()  # type: ignore[no-untyped-call]

app = App()
settings = app.settings  # wrong settings or rules stop the app here, every problem named
declared = app.resources
lines.hold()  # no invocation runs yet
app.log_warnings()
logging.getLogger("azure").setLevel(logging.WARNING)


@functions.timer_trigger(arg_name="timer", schedule=settings.metric_collector_schedule)
@functions.queue_output(arg_name="metrics", queue_name="metrics", connection=STORAGE)
@invocation
async def metric_collector(timer: func.TimerRequest, metrics: func.Out[List[str]]) -> None:
    """Read every source; one message per metric that answered."""
    collection = await flows.metric_collector.run(
        declared.values(), app.scaling.reader, settings.source_timeout_seconds
    )
    metrics.set([messages.encode_metric(metric) for metric in collection.metrics])


@functions.queue_trigger(arg_name="message", queue_name="metrics", connection=STORAGE)
@functions.queue_output(arg_name="actions", queue_name="actions", connection=STORAGE)
@invocation
async def scaling_logic(message: func.QueueMessage, actions: func.Out[str]) -> None:
    """Merge samples, decide, and order another capacity where the rule wants one."""
    samples = messages.decode_samples(_text(message))
    action = await flows.scaling_logic.run_all(samples, declared, app.scaling.store)
    if action is not None:
        actions.set(messages.encode_action(action))


@functions.queue_trigger(arg_name="message", queue_name="actions", connection=STORAGE)
@invocation
async def scaler(message: func.QueueMessage) -> None:
    """Set the capacity of the plan and confirm it."""
    action = messages.decode_action(_text(message))
    await flows.scaler.run(
        action, declared, app.scaling.store, app.scaling.control, app.scaling.timing
    )


@functions.timer_trigger(arg_name="timer", schedule=settings.reconciler_schedule)
@functions.queue_output(arg_name="actions", queue_name="actions", connection=STORAGE)
@invocation
async def reconciler(timer: func.TimerRequest, actions: func.Out[List[str]]) -> None:
    """Send again what got lost between decision and plan; notice changes made by hand."""
    again = await flows.reconciler.run(
        declared.values(),
        app.scaling.store,
        app.scaling.control,
        app.scaling.timing,
        settings.source_timeout_seconds,
    )
    actions.set([messages.encode_action(action) for action in again])


@functions.queue_trigger(arg_name="message", queue_name="metrics-poison", connection=STORAGE)
@invocation
async def metrics_poison(message: func.QueueMessage) -> None:
    """Write down a metric that could not be processed, and why."""
    await flows.poison.run_metric(_poison("metrics", message), declared, app.scaling.store)


@functions.queue_trigger(arg_name="message", queue_name="actions-poison", connection=STORAGE)
@invocation
async def actions_poison(message: func.QueueMessage) -> None:
    """Write down an action that could not be carried out, and free its resource."""
    await flows.poison.run_action(
        _poison("actions", message), declared, app.scaling.store, app.scaling.timing
    )


@functions.timer_trigger(arg_name="timer", schedule=settings.log_retention_schedule)
@invocation
async def log_retention(timer: func.TimerRequest) -> None:
    """Delete decisions older than the settings say."""
    await flows.retention.run(declared, app.scaling.store, settings.decision_log_days)


@data_sets.queue_trigger(
    arg_name="message", queue_name=settings.telemetry_queue, connection=STORAGE
)
@invocation
async def telemetry_arrived(message: func.QueueMessage) -> None:
    """A blob of telemetry came: schedule the processing of its data set, once for each period."""
    arrival = arrivals.decode_arrival(_text(message))
    await app.data_sets.queue_check.run()
    sender = app.data_sets.processing_sender
    await dataset_flows.telemetry_arrived.run(arrival, app.checked.periods, sender, app.now())


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
    await dataset_flows.process_dataset.run(
        work, holder, app.data_sets.claims, app.nightly.recompute, app.data_sets.processing_sender
    )


@data_sets.queue_trigger(
    arg_name="message", queue_name=f"{settings.telemetry_queue}-poison", connection=STORAGE
)
@invocation
async def telemetry_poison(message: func.QueueMessage) -> None:
    """Say what is wrong with an event."""
    dataset_flows.poison.run(_text(message), message.id or "by-hand")


@functions.timer_trigger(arg_name="timer", schedule=settings.notifications.schedule)
@invocation
async def notifier(timer: func.TimerRequest) -> None:
    """Tell people what happened and what lasts."""
    parts = app.notifications
    await notification_flow.run(parts.sources, parts.store, parts.notifier, parts.intervals)


@functions.route("dashboard", methods=["GET"])
@invocation
async def dashboard(req: func.HttpRequest) -> func.HttpResponse:
    """The page."""
    from shared.web.page import page  # noqa: PLC0415  for who looks at it only

    return _response(await page(app.web.board, _request(req)))


@functions.route("resources/{name?}/{view?}", methods=["GET"])
@invocation
async def resources(req: func.HttpRequest) -> func.HttpResponse:
    """What is scaled, as JSON: resources, resources/NAME, …/decisions, …/history."""
    return _response(await board.read(app.web.board, _request(req)))


@functions.route("trends", methods=["GET"])
@invocation
async def trends(req: func.HttpRequest) -> func.HttpResponse:
    """Event trends as the nightly job found them."""
    return await _panel("trends")


@functions.route("resources/{name}/override", methods=["POST"])
@invocation
async def override(req: func.HttpRequest) -> func.HttpResponse:
    """Put in a word over the rules, or take it back."""
    asked, name = _request(req), req.route_params["name"]
    return _response(await board.put_override(app.web.board, name, asked, uuid4().hex))


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
    await ingest.run(batch.events, app.ingestion.pipeline(batch.partition_id))


@ingestion.timer_trigger(arg_name="timer", schedule=settings.ingestion.tail_schedule)
@invocation
async def ingest_tail(timer: func.TimerRequest) -> None:
    """Find what nobody delivered, send what an instance left behind, remove what is old."""
    await app.ingestion.effect_retention.run()
    partition_ids = await app.ingestion.hub.partition_ids()
    await app.ingestion.tail_watch.run(partition_ids, app.ingestion.pipeline)


@ingestion.route("breakers", methods=["GET"], auth_level=func.AuthLevel.FUNCTION)
@invocation
async def breakers(req: func.HttpRequest) -> func.HttpResponse:
    """The circuit breakers, with a link to close one that is open."""
    return await _panel("breakers")


@ingestion.route("breakers/{name}", methods=["GET"], auth_level=func.AuthLevel.ANONYMOUS)
@invocation
async def breaker_page(req: func.HttpRequest) -> func.HttpResponse:
    """The state of the breaker, for who holds a link."""
    return await _breaker(breaker_http.show, req)


@ingestion.route("breakers/{name}/close", methods=["POST"], auth_level=func.AuthLevel.ANONYMOUS)
@invocation
async def breaker_close(req: func.HttpRequest) -> func.HttpResponse:
    """Close the breaker, by the token of a link."""
    return await _breaker(breaker_http.close, req)


@ingestion.route("breakers/{name}/status", methods=["GET"], auth_level=func.AuthLevel.FUNCTION)
@invocation
async def breaker_status(req: func.HttpRequest) -> func.HttpResponse:
    """The state of the breaker and a new link, for who has a key of the app."""
    return await _breaker(breaker_http.status, req)


@ingestion.route("breakers/{name}/isolate", methods=["POST"], auth_level=func.AuthLevel.FUNCTION)
@invocation
async def breaker_isolate(req: func.HttpRequest) -> func.HttpResponse:
    """Stop the consumption of events until a person closes the breaker."""
    return await _breaker(breaker_http.isolate, req)


@nightly.timer_trigger(arg_name="timer", schedule=settings.nightly.schedule)
@nightly.retry(strategy="fixed_delay", max_retry_count="5", delay_interval="00:05:00")
@invocation
async def nightly_trends(timer: func.TimerRequest) -> None:
    """Ask for yesterday's trends, and for those of days with late data; start what can start."""
    parts, datasets, late_days = app.nightly, settings.nightly.datasets, settings.nightly.late_days
    await demand_nightly(datasets, late_days, parts.store, parts.inputs, app.notifications.notifier)
    await parts.run_manager.run_all(datasets)


@nightly.timer_trigger(arg_name="timer", schedule=settings.nightly.runs_schedule)
@invocation
async def trend_runs(timer: func.TimerRequest) -> None:
    """Look at the runs: start what is asked for, try again, stop what is stuck, tell who fails."""
    await app.nightly.run_manager.run_all(settings.nightly.datasets)


@ingestion.route("dead-letters", methods=["GET"], auth_level=func.AuthLevel.FUNCTION)
@invocation
async def dead_letters(req: func.HttpRequest) -> func.HttpResponse:
    """The events that failed, for who has a key of the app."""
    return await _dead_letters(dead_letters_http.list_letters, req)


@ingestion.route(
    "dead-letters/{partition}/{sequence}", methods=["GET"], auth_level=func.AuthLevel.FUNCTION
)
@invocation
async def dead_letter(req: func.HttpRequest) -> func.HttpResponse:
    """One of them, with its error and body."""
    return await _dead_letters(dead_letters_http.show, req)


@ingestion.route(
    "dead-letters/{partition}/{sequence}/redrive",
    methods=["POST"],
    auth_level=func.AuthLevel.FUNCTION,
)
@invocation
async def dead_letter_redrive(req: func.HttpRequest) -> func.HttpResponse:
    """Put one into the pipeline again, exactly once."""
    return await _dead_letters(dead_letters_http.redrive, req)


@ingestion.route("dead-letters/purge", methods=["POST"], auth_level=func.AuthLevel.FUNCTION)
@invocation
async def dead_letters_purge(req: func.HttpRequest) -> func.HttpResponse:
    """Give up for good what failed long ago."""
    return await _dead_letters(dead_letters_http.purge_older, req)


if settings.ingestion.hub is not None:
    functions.register_functions(ingestion)

if settings.processing_period_hours:
    functions.register_functions(data_sets)

if settings.nightly.submitter:
    functions.register_functions(nightly)


async def _breaker(
    serve: Callable[[Request, BreakerController], Awaitable[Reply]], req: func.HttpRequest
) -> func.HttpResponse:
    return _response(await serve(_request(req), app.ingestion.breaker_controller))


async def _dead_letters(
    serve: Callable[[Request, DeadLetterService], Awaitable[Reply]], req: func.HttpRequest
) -> func.HttpResponse:
    return _response(await serve(_request(req), app.ingestion.dead_letter_service))


async def _panel(name: str) -> func.HttpResponse:
    return _response(await board.read_panel(app.web.board, name))


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
    inserted_at = message.insertion_time or app.now()
    return PoisonMessage(queue, message.id or "by-hand", _text(message), inserted_at)
