"""Event hubs: read one, see how far that is, look after events that failed, send one event."""

from __future__ import annotations

import asyncio
import logging
import re
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from shared import settings
from shared.cli import tables
from shared.cli.command import Answer, Misused, command, group, say
from shared.ingestion.dead_letters.find import DeadLetterQuery, chunks, find, older_than, read
from shared.ingestion.dead_letters.ports import StoredDeadLetter
from shared.ingestion.dead_letters.redrive import DeadLetterResult, forward, purge
from shared.ingestion.decoding.decoding import decode
from shared.ingestion.decoding.readings import Reading, encode_reading
from shared.ingestion.errors import BadEvent, NotFound
from shared.ingestion.events.accounting import Writer
from shared.ingestion.events.replay import Replayed, Stretch, replay, side_stream, silent
from shared.ingestion.model import FailureKind
from shared.ingestion.operating import presenting as view
from shared.ingestion.operating import stream_account
from shared.settings import SettingsError
from shared.settings.ingestion import EVENT_HUB, HANDLER
from shared.wiring.app import App

commands = typer.Typer()
dead_letters = group("List, show, redrive and purge the events that failed.")
commands.add_typer(dead_letters, name="dead-letters")
AT_ONCE = 100
"""Taken up in one go."""
NAMED = "As scaling_rules.py names it."
NEGATIVE_NUMBERS = {"ignore_unknown_options": True}
"""Else -5 would be an option that nobody declared."""
UNITS = {"d": "days", "h": "hours", "m": "minutes", "s": "seconds"}


def parse_age(text: str) -> timedelta:
    """``30d``, ``12h``, ``90m``, ``10s``."""
    match = re.fullmatch(r"(\d{1,6})([dhms])", text)
    if match is None:
        raise ValueError(f"{text!r}: an age such as 30d, 12h, 90m is needed")
    return timedelta(**{UNITS[match[2]]: int(match[1])})


def parse_time(text: str) -> datetime:
    """ISO 8601; without a zone it is UTC."""
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        example = "2026-03-01T12:00:00Z"
        raise ValueError(f"{text!r}: a time such as {example} is needed") from None
    return parsed.replace(tzinfo=UTC) if parsed.tzinfo is None else parsed


Hub = Annotated[str | None, typer.Option(help="Of this hub only.")]
Group = Annotated[
    str | None, typer.Option(help="Of this consumer group only, GROUP~NAME for a replay's.")
]
Kind = Annotated[FailureKind | None, typer.Option(help="Failed in this way only.")]
Age = Annotated[
    timedelta | None, typer.Option(parser=parse_age, metavar="30d", help="Failed before.")
]
PartitionOption = Annotated[str | None, typer.Option(help="Of this partition only.")]
Partition = Annotated[str, typer.Argument(metavar="PARTITION")]
SequenceNumber = Annotated[int, typer.Argument(metavar="SEQUENCE", min=0)]


@command(commands, "run", has_json=False)
async def read_hub(
    app: App,
    handler: Annotated[
        str,
        typer.Option(
            metavar="MODULE:NAME",
            show_default=False,
            help="What handles events, instead of the setting IngestionHandler: a Handling, or a "
            "function that takes a Stream and gives an async function from Event to Effect.",
        ),
    ] = "",
) -> None:
    """Read the event hub outside Functions.

    Reads its share of the partitions until SIGTERM or Ctrl-C; start as many processes as you like.
    They share the partitions evenly, and those of one that dies within OwnershipExpireSeconds.
    """
    from shared.wiring.runner import Runner  # noqa: PLC0415  heavy to import

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    logging.getLogger("azure").setLevel(logging.ERROR)  # the runner logs what failed
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
    """The option is the setting, for this process."""
    if (folder := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, folder)
    settings.override(HANDLER, handler)


@command(commands, "account")
async def show_account(app: App) -> Answer:
    """Show how far each partition is.

    Of each partition: up to which number every event has an outcome, under which epoch and by whom,
    and which numbers the hub had lost before they were taken in.
    """
    accounts = await stream_account.run(app.ingestion.store)
    return view.accounts(accounts), tables.accounts


@command(commands, "replay")
async def replay_stretch(
    app: App,
    partition: Partition,
    into: Annotated[str, typer.Option(metavar="NAME", help="Letters, digits, hyphens.")],
    from_sequence: Annotated[int | None, typer.Option(min=0, metavar="N", show_default="0")] = None,
    from_time: Annotated[
        datetime | None, typer.Option(parser=parse_time, metavar="TIME", help="ISO 8601, UTC.")
    ] = None,
    to_sequence: Annotated[
        int | None, typer.Option(min=0, metavar="N", show_default="the newest now")
    ] = None,
    send: Annotated[
        bool,
        typer.Option(
            "--send",
            help="Send the messages too, under the ids of the first time: who remembers them takes "
            "only what it missed.",
        ),
    ] = False,
) -> Answer:
    """Read a stretch of a partition again.

    Handles a stretch of a partition again. What becomes of it is accounted for under NAME, apart
    from the stream itself, whose checkpoint, effects and dead letters stay as they are, and so do
    tables of your own. The same NAME goes on where it stopped. Without --send no message leaves.
    """
    if from_sequence is not None and from_time is not None:
        raise Misused("name either --from-sequence or --from-time")
    stream = app.ingestion.stream(partition)
    try:
        side = side_stream(stream, into)
    except ValueError as error:
        raise Misused(str(error)) from error
    # The handler is that of the stream itself: the ids are those of it.
    pipeline = app.ingestion.pipeline_of(stream, Writer(f"replay {into}"))
    consumer = replace(pipeline.consumer, stream=side, store=app.ingestion.store_alone)
    if not send:
        consumer = replace(consumer, handle=silent(consumer.handle))
    stretch = Stretch(from_sequence, from_time, to_sequence)
    replayed = await replay(consumer, stretch, pipeline.sender if send else None, _say_progress)
    return view.replayed(replayed), tables.replay


def _say_progress(so_far: Replayed) -> None:
    done = so_far.checkpoint.sequence if so_far.checkpoint else "nothing"
    say(f"{done} of {so_far.last}")


@command(commands, "send-reading", context_settings=NEGATIVE_NUMBERS)
async def send_reading(
    app: App,
    resource: Annotated[str, typer.Argument(metavar="RESOURCE", help=NAMED)],
    metric: Annotated[str, typer.Argument(metavar="METRIC", help=NAMED)],
    value: Annotated[float, typer.Argument(metavar="VALUE")],
    time: Annotated[
        datetime | None,
        typer.Option(parser=parse_time, metavar="TIME", help="ISO 8601.", show_default="now"),
    ] = None,
) -> Answer:
    """Send one value of a metric.

    Sends it to the event hub, as whoever measures it would; to try it. With managed identity this
    takes Azure Event Hubs Data Sender, which the app does not have.
    """
    if app.ingestion.settings.hub is None:
        raise SettingsError([f"{EVENT_HUB} = '': must be set to send events"])
    connection = app.ingestion.connection
    at = time or app.now()
    body = encode_reading(Reading(resource, metric, at, value))
    try:
        decode(body, app.ingestion.interests)
    except BadEvent as error:
        say(f"note: this will be a dead letter: {error}")
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
    """Print one line for each."""
    query = DeadLetterQuery(hub, group, partition, None, kind, await _before(app, older_than))
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
    raw: Annotated[bool, typer.Option("--raw", help="Nothing but the body, byte by byte.")] = False,
) -> Answer:
    """Show one, with its error and body."""
    query = DeadLetterQuery(hub, group, partition, sequence, kind)
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
    everything: Annotated[
        bool, typer.Option("--all", help="All that the options describe.")
    ] = False,
    older_than: Age = None,
    to_queue: Annotated[
        str | None,
        typer.Option(metavar="Q", help="Not into the pipeline but to this Service Bus queue."),
    ] = None,
    connection: Annotated[str, typer.Option(metavar="NAME")] = "ServiceBusConnection",
) -> Answer:
    """Put events in again, each once."""
    if everything == (sequence is not None):
        raise Misused("name one by PARTITION and SEQUENCE, or say --all")
    query = DeadLetterQuery(hub, group, partition, sequence, kind, await _before(app, older_than))
    if to_queue is None:
        return await _each(app, query, partial(_into_the_pipeline, app))
    store, reader = app.ingestion.store, app.ingestion.hub
    sender = app.ingestion.dead_letter_queue(connection, to_queue)
    return await _each(app, query, lambda some: forward(store, reader, sender, some))


async def _into_the_pipeline(app: App, letters: Sequence[StoredDeadLetter]) -> DeadLetterResult:
    outcome = await app.ingestion.redriver.run(letters)
    await app.ingestion.send_redriven(outcome.done)
    return outcome


@command(dead_letters, "purge")
async def purge_dead_letters(
    app: App,
    older_than: Annotated[timedelta, typer.Option(parser=parse_age, metavar="30d")],
    hub: Hub = None,
    group: Group = None,
    kind: Kind = None,
    partition: PartitionOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what would go.")] = False,
) -> Answer:
    """Give events up for good."""
    query = DeadLetterQuery(hub, group, partition, None, kind, await _before(app, older_than))
    if dry_run:
        return await _each(app, query, _only_count)
    return await _each(app, query, lambda some: purge(app.ingestion.store, some))


async def _only_count(letters: Sequence[StoredDeadLetter]) -> DeadLetterResult:
    return DeadLetterResult(done=list(letters))


async def _each(
    app: App,
    query: DeadLetterQuery,
    act: Callable[[Sequence[StoredDeadLetter]], Awaitable[DeadLetterResult]],
) -> Answer:
    """Take up all that is asked for, a hundred at a time."""
    outcome = DeadLetterResult()
    async for some in chunks(app.ingestion.store, query, AT_ONCE):
        outcome.add(await act(some))
    if query.sequence is not None and not (outcome.done or outcome.failed or outcome.gone):
        raise NotFound("no dead letter of this number")
    return view.result(outcome), tables.outcome


async def _before(app: App, age: timedelta | None) -> datetime | None:
    streams = [] if age is None else await app.ingestion.store.streams()
    return await older_than(app.ingestion.store, streams[0], age) if age and streams else None
