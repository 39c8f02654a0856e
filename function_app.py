"""The triggers of the function app. Each function decodes its input, runs a flow, and encodes the
result."""

import asyncio
import gc
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, List  # the worker refuses list[…] in a binding

import azure.functions as func

from shared.autoscaling import flows, messages
from shared.autoscaling.flows.poison import PoisonMessage
from shared.autoscaling.flows.reconciler import Reconciler
from shared.autoscaling.flows.scaler import Scaler
from shared.autoscaling.policy import Resource
from shared.autoscaling.ports import QueueSender
from shared.autoscaling.state import ScaleAction
from shared.azure.invocation import InvocationGuard, lines
from shared.settings import SettingsError, parse
from shared.settings.connections import HOST_STORAGE
from shared.settings.ingestion import EVENT_HUB
from shared.web import board, page, samples_http
from shared.web.http import Reply, Request, encoded
from shared.web.operation import Operation
from shared.wiring.app import App
from shared.wiring.checks import PROCESSING_CONNECTION as SERVICE_BUS
from shared.wiring.rules_version import rules_version
from shared.wiring.scaling import SEND_SECONDS_MAX

functions = func.FunctionApp()
refused = func.Blueprint()  # type: ignore[no-untyped-call]
scaling = func.Blueprint()  # type: ignore[no-untyped-call]
senders = func.Blueprint()  # type: ignore[no-untyped-call]
data_sets = func.Blueprint()  # type: ignore[no-untyped-call]
ingestion = func.Blueprint()  # type: ignore[no-untyped-call]
nightly = func.Blueprint()  # type: ignore[no-untyped-call]

app = App()
failure: SettingsError | None = None
try:
    settings, declared = app.settings, app.resources
except SettingsError as error:  # an error here would leave a host without any function
    settings, declared, failure = parse({})[0], {}, error
version = rules_version(settings.environ)
lines.hold()  # the host drops lines that are logged outside an invocation
if failure is None:
    app.log_warnings()
TRIGGERS = {func.TimerRequest: "timer", func.HttpRequest: "http"}


def _observed(function: str, given: Any, context: Any) -> AbstractContextManager[None]:
    """See InvocationGuard."""
    if failure is not None or app.tracer is None:
        return nullcontext()
    trigger = next((name for kind, name in TRIGGERS.items() if isinstance(given, kind)), "pubsub")
    body = given.get_body() if isinstance(given, func.QueueMessage) else b""
    carried = messages.traceparents(body.decode(errors="replace"))
    return app.tracer.invocation(function, trigger, context, carried)


guard_invocation = InvocationGuard(_observed)
logging.getLogger("azure").setLevel(logging.WARNING)
for client in ("azure.eventhub", "azure.servicebus"):  # the app logs their errors, in one line each
    logging.getLogger(client).setLevel(logging.CRITICAL)
gc.freeze()  # modules are never garbage, and each full collection would look through them


@refused.timer_trigger(arg_name="timer", schedule="0 * * * * *", run_on_startup=True)
@guard_invocation
async def settings_check(timer: func.TimerRequest) -> None:
    """Fail every minute while settings or rules are wrong, so that logs and alerts show it."""
    if failure is not None:  # an error that is raised again keeps the tracebacks of every time
        raise SettingsError(failure.problems)


@scaling.timer_trigger(arg_name="timer", schedule=settings.metric_collector_schedule)
@guard_invocation
async def metric_collector(timer: func.TimerRequest) -> None:
    """Read all metric sources and send one message for each resource.

    If they cannot be sent, the next run sends newer ones.
    """
    collection = await flows.metric_collector.collect(
        declared.values(),
        app.scaling.reader,
        settings.source_timeout_seconds,
        app.scaling.message_counts,
        readings=app.scaling.plan_readings,
    )
    texts = collection.messages(settings.resources_per_message)
    await _send(app.scaling.metrics_queue, app.carrying(texts))


@scaling.queue_trigger(arg_name="message", queue_name="metrics", connection=HOST_STORAGE)
@guard_invocation
async def scaling_logic(message: func.QueueMessage) -> None:
    """Merge the samples, decide, and send a scale action if the capacity should change.

    If the action cannot be sent, the message is delivered again, and the action is sent then.
    """
    due = list[Resource]()
    actions, failed = await flows.scaling_logic.process_message(
        _text(message), lambda samples: _decide(samples, due)
    )
    await _send(app.scaling.metrics_queue, app.carrying(failed))
    await _send(app.scaling.actions_queue, actions)
    if due and not app.scaling.confirmations.locked():  # otherwise later messages or the timer do
        async with app.scaling.confirmations:
            await _send_actions(await _reconciler().reconcile_all(due))


@senders.queue_trigger(arg_name="message", queue_name="samples", connection=HOST_STORAGE)
@guard_invocation
async def samples_received(message: func.QueueMessage) -> None:
    """The same for the samples of a ``QueueMetric``, which senders outside the app send."""
    action = await _decide(messages.decode_samples(_text(message)), sent=True)
    await _send(app.scaling.actions_queue, [action] if action else [])


@scaling.queue_trigger(arg_name="message", queue_name="actions", connection=HOST_STORAGE)
@guard_invocation
async def scaler(message: func.QueueMessage) -> None:
    """Execute a scale action: set the capacity of the plan."""
    action = messages.decode_action(_text(message))
    parts = app.scaling
    await Scaler(declared, parts.store, parts.control, parts.timing).execute(action)


@scaling.timer_trigger(arg_name="timer", schedule=settings.reconciler_schedule)
@guard_invocation
async def reconciler(timer: func.TimerRequest) -> None:
    """Send lost actions again, and detect manual changes of the capacity.

    If an action cannot be sent, it is sent again after ``ActionResendSeconds``.
    """
    await _send_actions(await _reconciler().reconcile_all(declared.values()))


@scaling.queue_trigger(arg_name="message", queue_name="metrics-poison", connection=HOST_STORAGE)
@guard_invocation
async def metrics_poison(message: func.QueueMessage) -> None:
    """Record in the decision log that a metric could not be processed, and why."""
    await flows.poison.run_metric(_poison("metrics", message), declared, app.scaling.store)


@senders.queue_trigger(arg_name="message", queue_name="samples-poison", connection=HOST_STORAGE)
@guard_invocation
async def samples_poison(message: func.QueueMessage) -> None:
    """Record in the decision log that a sample of a sender could not be processed, and why."""
    await flows.poison.run_metric(_poison("samples", message), declared, app.scaling.store)


@scaling.queue_trigger(arg_name="message", queue_name="actions-poison", connection=HOST_STORAGE)
@guard_invocation
async def actions_poison(message: func.QueueMessage) -> None:
    """Log an action that could not be executed. If it is still pending, mark it as failed, so that
    the app can make a new decision."""
    await flows.poison.run_action(
        _poison("actions", message), declared, app.scaling.store, app.scaling.timing
    )


@scaling.timer_trigger(arg_name="timer", schedule=settings.log_retention_schedule)
@guard_invocation
async def log_retention(timer: func.TimerRequest) -> None:
    """Delete old trends, and entries of the decision log older than ``DecisionLogDays``."""
    days = settings.decision_log_days
    await asyncio.gather(
        flows.retention.delete_old_entries(declared, app.scaling.store, days),
        app.nightly.trends.delete_old(),
    )


@data_sets.queue_trigger(
    arg_name="message", queue_name=settings.telemetry_queue, connection=HOST_STORAGE
)
@guard_invocation
async def telemetry_arrived(message: func.QueueMessage) -> None:
    """Schedule the processing of a new blob's data set, once for each period."""
    await app.data_sets.schedule(_text(message))


@data_sets.service_bus_queue_trigger(
    arg_name="message",
    queue_name=settings.working_queue,
    connection=SERVICE_BUS,
    is_sessions_enabled=True,
)
@guard_invocation
async def process_dataset(message: func.ServiceBusMessage) -> None:
    """Process a data set for a period that has ended, unless it was processed already."""
    await app.data_sets.process(message.get_body(), message=str(message.sequence_number))


@data_sets.queue_trigger(
    arg_name="message", queue_name=f"{settings.telemetry_queue}-poison", connection=HOST_STORAGE
)
@guard_invocation
async def telemetry_poison(message: func.QueueMessage) -> None:
    """Log why an Event Grid event could not be processed."""
    app.data_sets.log_poison(_text(message), message.id or "by-hand")


@scaling.timer_trigger(arg_name="timer", schedule=settings.notifications.schedule)
@guard_invocation
async def notifier(timer: func.TimerRequest) -> None:
    """Send notifications about events (such as a gap), and about conditions (such as an open
    breaker) as long as they last."""
    await app.notifications.send_due()


@ingestion.event_hub_message_trigger(
    arg_name="events",
    event_hub_name=settings.ingestion.hub_name,
    consumer_group=settings.ingestion.consumer_group,
    connection=EVENT_HUB,
    cardinality=func.Cardinality.MANY,
    data_type=func.DataType.BINARY,
)
@ingestion.retry(strategy="fixed_delay", max_retry_count="-1", delay_interval="00:00:05")
@guard_invocation
async def metric_ingest(events: List[func.EventHubEvent]) -> None:
    """Process a batch of events. If this fails, the host retries the batch.

    Without the unlimited retries, the host would skip a batch that fails.
    """
    await app.ingestion.process([event.get_body() for event in events], events[0].metadata)


@ingestion.timer_trigger(arg_name="timer", schedule=settings.ingestion.tail_schedule)
@guard_invocation
async def ingest_tail(timer: func.TimerRequest) -> None:
    """Process events that were not delivered, send messages that were left unsent, and delete old
    effects."""
    await app.ingestion.process_tails()


@nightly.timer_trigger(arg_name="timer", schedule=settings.nightly.schedule)
@nightly.retry(strategy="fixed_delay", max_retry_count="5", delay_interval="00:05:00")
@guard_invocation
async def nightly_trends(timer: func.TimerRequest) -> None:
    """Request runs for yesterday and for dates with late data, and start as many as possible."""
    await app.nightly.demand_runs()
    await app.nightly.advance_runs()


@nightly.timer_trigger(arg_name="timer", schedule=settings.nightly.runs_schedule)
@guard_invocation
async def trend_runs(timer: func.TimerRequest) -> None:
    """Start requested runs, retry failed ones, and stop overdue ones."""
    await app.nightly.advance_runs()


def serve(blueprint: func.Blueprint, part: Callable[[], Any], *operations: Operation) -> None:
    """Make each operation of the HTTP API a function of this module, with its own name and key.
    ``part`` is what serves it, which is built when the first request arrives.
    """
    for operation in operations:
        level = func.AuthLevel.FUNCTION if operation.keyed else func.AuthLevel.ANONYMOUS
        route = blueprint.route(operation.route, methods=[operation.method], auth_level=level)
        globals()[operation.name] = route(guard_invocation(_answering(operation, part)))


def _answering(
    operation: Operation, part: Callable[[], Any]
) -> Callable[[func.HttpRequest], Awaitable[func.HttpResponse]]:
    async def answer(req: func.HttpRequest) -> func.HttpResponse:
        return _response(await operation(_request(req), part()), req)

    answer.__name__ = operation.name
    return answer


serve(refused, lambda: failure.problems if failure else (), page.settings_problems)
serve(scaling, lambda: app.web.board, *page.OPERATIONS, *board.OPERATIONS)
serve(senders, lambda: app.web.sample_receiver, samples_http.push_metrics)

if failure is not None:
    functions.register_functions(refused)
else:
    functions.register_functions(scaling)
    if any(source.is_sent for each in declared.values() for source in each.metrics.values()):
        functions.register_functions(senders)
    if settings.ingestion.hub is not None:
        from shared.web import breaker_http, dead_letters_http

        serve(ingestion, lambda: app.web.board, breaker_http.breakers)
        serve(ingestion, lambda: app.ingestion.breaker_controller, *breaker_http.OPERATIONS)
        serve(ingestion, lambda: app.ingestion.redriver, *dead_letters_http.OPERATIONS)
        functions.register_functions(ingestion)
    if settings.processing_period_hours:
        functions.register_functions(data_sets)
    if settings.nightly.submitter:
        functions.register_functions(nightly)


async def _decide(
    samples: messages.Samples, due: list[Resource] | None = None, *, sent: bool = False
) -> str | None:
    """The message of the action to send, if any. It continues the span of the decision."""
    with app.tracer.span("decide") if app.tracer else nullcontext():
        action = await flows.scaling_logic.process_samples(
            samples, declared, app.scaling.store, version, sent=sent, due=due
        )
        return app.carrying([messages.encode_action(action)])[0] if action else None


async def _send_actions(actions: Sequence[ScaleAction]) -> None:
    texts = [messages.encode_action(each) for each in actions]
    await _send(app.scaling.actions_queue, app.carrying(texts))


def _reconciler() -> Reconciler:
    parts, seconds = app.scaling, settings.source_timeout_seconds
    return Reconciler(parts.store, parts.control, parts.timing, seconds, version)


async def _send(queue: QueueSender, texts: Sequence[str]) -> None:
    """Send messages from the function itself. An output binding would have no time limit."""
    if texts:
        async with asyncio.timeout(SEND_SECONDS_MAX):
            await queue.send_texts(texts)


def _request(request: func.HttpRequest) -> Request:
    return Request(
        query=dict(request.params),
        route=dict(request.route_params),
        headers={key.lower(): value for key, value in request.headers.items()},
        body=request.get_body(),
    )


def _response(reply: Reply, request: func.HttpRequest) -> func.HttpResponse:
    body, headers = encoded(reply, request.headers.get("accept-encoding", ""))
    return func.HttpResponse(
        body,
        status_code=reply.status,
        headers=dict(headers),
        mimetype=reply.content_type,
    )


def _text(message: func.QueueMessage) -> str:
    return message.get_body().decode("utf-8")


def _poison(queue: str, message: func.QueueMessage) -> PoisonMessage:
    """The message of a poison queue. If an operator runs the function by hand, the message has only
    a body, so this function adds an ID and a time."""
    inserted_at = message.insertion_time or app.now()
    return PoisonMessage(queue, message.id or "by-hand", _text(message), inserted_at)
