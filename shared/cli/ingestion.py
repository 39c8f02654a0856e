"""The commands for event hubs: read one, show progress, replay, handle dead letters, send."""

from __future__ import annotations

import asyncio
import logging
import math
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from shared import settings
from shared.autoscaling.acting.activation import is_same
from shared.autoscaling.deciding.samples import FUTURE_TOLERANCE_SECONDS
from shared.cli import tables
from shared.cli.command import Answer, Misused, Moment, command, group, say
from shared.ingestion.dead_letters.find import DeadLetterQuery, chunks, find, older_than, read
from shared.ingestion.dead_letters.redrive import DeadLetterResult, forward, purge
from shared.ingestion.decoding.decode import decode
from shared.ingestion.errors import NO_LETTER, BadEvent, NotFound
from shared.ingestion.events.accounting import Writer
from shared.ingestion.events.replay import (
    ReplayProgress,
    ReplayRange,
    replay,
    replay_name,
    replay_stream,
    without_messages,
)
from shared.ingestion.model import FailureKind
from shared.ingestion.operating import presenting as view
from shared.ingestion.operating import stream_account
from shared.ingestion.store.events import StoredDeadLetter
from shared.settings import SettingsError
from shared.settings.ingestion import EVENT_HUB, HANDLER
from shared.values.durations import short
from shared.values.measurements import Metric, MetricValue
from shared.values.samples import encode_samples
from shared.wiring.app import App
from shared.wiring.rules_version import rules_version

commands = typer.Typer()
dead_letters = group("List, show, redrive and purge dead letters.")
commands.add_typer(dead_letters, name="dead-letters")
CHUNK = 100
NAMED = "The name in scaling_rules.py."
NEGATIVE_NUMBERS = {"ignore_unknown_options": True}
"""Without this, -5 would be parsed as an option."""


Hub = Annotated[str | None, typer.Option(help="Only this hub.")]
Group = Annotated[
    str | None,
    typer.Option(
        help="Only this consumer group. To select the dead letters of a replay, give GROUP~NAME, "
        "where NAME is the name of the replay."
    ),
]
Kind = Annotated[FailureKind | None, typer.Option(help="Only this kind of failure.")]
Age = Annotated[
    timedelta | None,
    typer.Option(parser=short, metavar="30d", help="Only failures older than this."),
]
PartitionOption = Annotated[str | None, typer.Option(help="Only this partition.")]
Partition = Annotated[str, typer.Argument(metavar="PARTITION")]
PLACE_PARTS = 3
SequenceNumber = Annotated[int, typer.Argument(metavar="SEQUENCE", min=0)]


@command(commands, "run", has_json=False)
async def read_hub(
    app: App,
    handler: Annotated[
        str,
        typer.Option(
            metavar="MODULE:NAME",
            show_default=False,
            help="The event handler to use instead of the one in IngestionHandler. It is a "
            "Handling (see shared/ingestion/events/handling.py), or a function that takes a Stream "
            "and returns an async function from Event to Effect.",
        ),
    ] = "",
) -> None:
    """Read the event hub outside Functions.

    This process reads its share of the partitions until SIGTERM or Ctrl-C. You can start any number
    of processes: they share the partitions evenly. If a process dies, the others take over its
    partitions within OwnershipExpireSeconds.
    """
    from shared.wiring.runner import Runner  # noqa: PLC0415  heavy to import

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    if handler:
        _use_handler(handler)
    if app.ingestion.settings.hub is None:
        raise SettingsError([f"{EVENT_HUB} = '': must be set to read events"])
    runner = Runner(app)
    stopping = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stopping.set)
    logging.info("[started] %s", runner.name)
    await runner.run(stopping)
    logging.info("[stopped] %s", runner.name)


def _use_handler(handler: str) -> None:
    """The handler may be in the current folder."""
    if (folder := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, folder)
    settings.override(HANDLER, handler)


@command(commands, "account")
async def show_account(app: App) -> Answer:
    """Show how far each partition has been processed.

    Shows the last sequence number up to which all events have an outcome, and the epoch and the
    owner of the last commit. Also shows how many events were set aside because they are not
    metrics, and the sequence numbers of events that the hub deleted before the app read them.
    """
    accounts = await stream_account.stream_accounts(app.ingestion.store)
    return view.accounts(accounts), tables.accounts


@command(commands, "replay")
async def replay_range(
    app: App,
    partition: Partition,
    into: Annotated[
        str,
        typer.Option(parser=replay_name, metavar="NAME", help="Letters, digits, hyphens."),
    ],
    from_sequence: Annotated[int | None, typer.Option(min=0, metavar="N", show_default="0")] = None,
    from_time: Moment = None,
    to_sequence: Annotated[
        int | None, typer.Option(min=0, metavar="N", show_default="the newest event at the start")
    ] = None,
    send: Annotated[
        bool,
        typer.Option(
            "--send",
            help="Also send the messages. Their IDs are the same as the first time, so a receiver "
            "that detects duplicates processes only the messages that it missed.",
        ),
    ] = False,
) -> Answer:
    """Process a range of a partition again.

    The outcomes are stored under NAME. The checkpoint, effects and dead letters of the partition
    itself do not change. Nor do the tables that your own handler writes. If you run the command
    again with the same NAME, it continues where it stopped. Without --send, no messages are sent.
    """
    if from_sequence is not None and from_time is not None:
        raise Misused("give either --from-sequence or --from-time")
    if to_sequence is not None and to_sequence < (from_sequence or 0):
        raise Misused(f"--to-sequence {to_sequence} is before --from-sequence {from_sequence}")
    stream = app.ingestion.stream(partition)
    outcome_stream = replay_stream(stream, into)
    # The handler gets the original stream, so that message IDs are the same as the first time.
    pipeline = app.ingestion.pipeline_of(stream, Writer(f"replay {into}"))
    store = app.ingestion.store_alone
    consumer = replace(pipeline.consumer, stream=outcome_stream, store=store)
    if not send:
        consumer = replace(consumer, handle=without_messages(consumer.handle))
    numbers = ReplayRange(from_sequence, from_time, to_sequence)
    replayed = await replay(consumer, numbers, pipeline.send if send else None, _say_progress)
    return view.replayed(replayed), tables.replay


def _say_progress(so_far: ReplayProgress) -> None:
    checkpoint = so_far.checkpoint
    done = f"processed up to event {checkpoint.sequence}" if checkpoint else "nothing processed yet"
    say(f"{done}; the replay ends with event {so_far.last}")


@command(commands, "send-reading", context_settings=NEGATIVE_NUMBERS)
async def send_reading(
    app: App,
    resource: Annotated[str, typer.Argument(metavar="RESOURCE", help=NAMED)],
    metric: Annotated[str, typer.Argument(metavar="METRIC", help=NAMED)],
    value: Annotated[float, typer.Argument(metavar="VALUE")],
    time: Moment = None,
) -> Answer:
    """Send one value of a metric, to try out the event hub.

    The event is the same as one from a real sender. With a managed identity this requires the role
    Azure Event Hubs Data Sender, which the app itself does not need.
    """
    if app.ingestion.settings.hub is None:
        raise SettingsError([f"{EVENT_HUB} = '': must be set to send events"])
    if not math.isfinite(value):
        raise Misused(f"VALUE is {value}, which JSON cannot hold")
    connection = app.ingestion.connection
    at = time or app.now()
    body = encode_samples([Metric(resource, metric, MetricValue(at, value))]).encode()
    try:
        decode(body, app.ingestion.metric_subscriptions)
    except BadEvent as error:
        say(f"note: this event will become a dead letter: {error}")
    if at > app.now() + timedelta(seconds=FUTURE_TOLERANCE_SECONDS):
        say(f"note: the scaling logic will refuse this value: {at.isoformat()} is in the future")
    await app.ingestion.send_event(body)
    sent = {"hub": connection.hub, "namespace": connection.namespace, "event": body.decode()}
    return sent, tables.sent


@command(dead_letters, "list")
async def list_dead_letters(
    app: App,
    hub: Hub = None,
    group: Group = None,
    kind: Kind = None,
    partition: PartitionOption = None,
    limit: Annotated[int, typer.Option(min=0)] = 100,
    after: Annotated[int | None, typer.Option(min=0, metavar="SEQUENCE")] = None,
    older_than: Age = None,
) -> Answer:
    """Print one line for each dead letter."""
    query = await _query(app, hub, group, partition, kind, older_than)
    letters = await find(app.ingestion.store, query, limit, after)
    return view.letters_page(letters, limit), tables.dead_letters


@command(dead_letters, "show")
async def show_dead_letter(
    app: App,
    partition: Partition,
    sequence: SequenceNumber,
    hub: Hub = None,
    group: Group = None,
    kind: Kind = None,
    raw: Annotated[bool, typer.Option("--raw", help="Print only the bytes of the body.")] = False,
) -> Answer:
    """Show one dead letter, with its error and body."""
    query = await _query(app, hub, group, partition, kind)
    query = replace(query, sequence=sequence, without_replays=True)
    stored, event = await read(app.ingestion.store, app.ingestion.hub, query)
    if raw:
        sys.stdout.buffer.write(event.body)
        return None
    return view.letter_with_body(stored, event), tables.dead_letter


@command(dead_letters, "redrive")
async def redrive_dead_letters(  # noqa: PLR0913  a parameter is an option
    app: App,
    partition: Annotated[str | None, typer.Argument(metavar="PARTITION")] = None,
    sequence: Annotated[int | None, typer.Argument(metavar="SEQUENCE", min=0)] = None,
    *,
    hub: Hub = None,
    group: Group = None,
    kind: Kind = None,
    everything: Annotated[bool, typer.Option("--all", help="All that match the options.")] = False,
    older_than: Age = None,
    to_queue: Annotated[
        str | None,
        typer.Option(metavar="Q", help="Send to this Service Bus queue instead."),
    ] = None,
    connection: Annotated[str, typer.Option(metavar="NAME")] = "ServiceBusConnection",
    own_rules: Annotated[
        bool,
        typer.Option("--own-rules", help="Use the rules here, even if the app runs others."),
    ] = False,
) -> Answer:
    """Process dead letters again. Those that succeed are removed. Those that fail again remain.

    Dead letters of a replay are left out unless --group names the replay.
    """
    if everything == (sequence is not None):
        raise Misused("give either PARTITION and SEQUENCE or --all")
    query = await _query(app, hub, group, partition, kind, older_than)
    query = replace(query, sequence=sequence, without_replays=True)
    if to_queue is None:
        await _check_rules(app, ignore=own_rules)
        return await _apply(app, query, app.ingestion.redriver.redrive)
    store, reader = app.ingestion.store, app.ingestion.hub
    queue = app.ingestion.dead_letter_queue(connection, to_queue)
    return await _apply(app, query, lambda chunk: forward(store, reader, queue, chunk))


async def _query(
    app: App, hub: Hub, group: Group, partition: PartitionOption, kind: Kind, age: Age = None
) -> DeadLetterQuery:
    """The query of the options. ``list`` shows a partition as HUB/GROUP/PARTITION."""
    parts = partition.split("/") if partition else []
    if len(parts) == PLACE_PARTS:
        hub, group, partition = parts
    elif len(parts) > 1:
        raise Misused(f"{partition!r} must be PARTITION or HUB/GROUP/PARTITION, as listed")
    before = await older_than(app.ingestion.store, age) if age else None
    return DeadLetterQuery(hub, group, partition, kind=kind, failed_before=before)


async def _check_rules(app: App, *, ignore: bool) -> None:
    """Raise Misused if the app runs other rules, which may refuse what these accept. A handler of
    the user's own does not read the rules."""
    if app.ingestion.handling:
        return
    version, here = rules_version(app.settings.environ), app.resources
    running = {name: (await app.scaling.store.load(name)).state.rules for name in here}
    others = {name: rules.version for name, rules in running.items() if rules}
    differing = [name for name, other in others.items() if not is_same(other, version)]
    if differing and not ignore:
        name = differing[0]
        raise Misused(
            f"the app runs version {others[name]} of the rules for {name}, and scaling_rules.py "
            f"here is version {version}. The app may refuse what these rules accept. Deploy these "
            "rules first, redrive through the app (POST /api/dead-letters/PARTITION/SEQUENCE/"
            "redrive), or give --own-rules"
        )
    unknown = ", ".join(name for name in here if name not in others)
    if unknown:
        say(
            f"note: the app has not decided for {unknown} yet, so whether it runs these rules "
            f"(version {version}) is unknown. If it does not, it refuses the redriven samples"
        )


@command(dead_letters, "purge")
async def purge_dead_letters(
    app: App,
    older_than: Annotated[timedelta, typer.Option(parser=short, metavar="30d")],
    hub: Hub = None,
    group: Group = None,
    kind: Kind = None,
    partition: PartitionOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List them; delete nothing.")] = False,
) -> Answer:
    """Delete dead letters."""
    query = await _query(app, hub, group, partition, kind, older_than)
    if dry_run:
        read = chunks(app.ingestion.store, query, CHUNK)
        letters = [stored async for chunk in read for stored in chunk]
        say(f"dead letters that would be deleted: {len(letters)}")
        return view.letters_page(letters, len(letters) + 1), tables.dead_letters
    return await _apply(app, query, lambda chunk: purge(app.ingestion.store, chunk))


async def _apply(
    app: App,
    query: DeadLetterQuery,
    act: Callable[[Sequence[StoredDeadLetter]], Awaitable[DeadLetterResult]],
) -> Answer:
    outcome = DeadLetterResult()
    async for chunk in chunks(app.ingestion.store, query, CHUNK):
        outcome.add(await act(chunk))
    if query.sequence is not None and not (outcome.done or outcome.failed or outcome.gone):
        raise NotFound(NO_LETTER)
    return view.result(outcome), tables.outcome
