"""``send-reading``: one value of a metric, as an event to the hub."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from shared.cli import ingestion_tables, words
from shared.ingestion.decoding.decoding import decode
from shared.ingestion.decoding.readings import Reading, encode_reading
from shared.ingestion.errors import BadEvent
from shared.settings import SettingsError
from shared.settings.ingestion import EVENT_HUB
from shared.wiring.app import App

TOLD = (
    "Sends one value of a metric to the event hub, as whoever measures it would; to try it. With "
    "managed identity this takes Azure Event Hubs Data Sender, which the app does not have."
)


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "send-reading", help="send one value of a metric", description=TOLD
    )
    parser.add_argument("resource", metavar="RESOURCE", help="as scaling_rules.py names it")
    parser.add_argument("metric", metavar="METRIC", help="as scaling_rules.py names it")
    parser.add_argument("value", metavar="VALUE", type=float)
    parser.add_argument("--time", type=words.time, metavar="TIME", help="ISO 8601; default: now")
    parser.add_argument("--json", action="store_true")
    parser.set_defaults(run=main, show=ingestion_tables.sent)


async def main(app: App, options: argparse.Namespace) -> Any:
    if app.settings.ingestion.hub is None:
        raise SettingsError([f"{EVENT_HUB} = '': must be set to send events"])
    connection = app.ingestion.connection
    time = options.time or app.now()
    body = encode_reading(Reading(options.resource, options.metric, time, options.value))
    try:
        decode(body, app.ingestion.interests)
    except BadEvent as error:
        sys.stderr.write(f"note: this will be a dead letter: {error}\n")
    await app.ingestion.send_event(body)
    return {"hub": connection.hub, "namespace": connection.namespace, "event": body.decode()}
