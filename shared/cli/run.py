"""``run``: read the event hub outside Functions, as one process among any number."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from pathlib import Path
from typing import Any

from shared import settings
from shared.settings import SettingsError
from shared.settings.ingestion import EVENT_HUB, HANDLER
from shared.wiring.app import App
from shared.wiring.runner import Runner


def add(commands: Any) -> None:
    run = commands.add_parser("run", help="read the event hub outside Functions", description=TOLD)
    run.add_argument(
        "--handler",
        metavar="MODULE:NAME",
        help="what handles events, instead of the setting IngestionHandler: a Handling, or a "
        "function that takes a Stream and gives an async function from Event to Effect",
    )
    run.set_defaults(run=main, show=None)


TOLD = (
    "Reads its share of the partitions until SIGTERM or Ctrl-C; start as many processes as you "
    "like. They share the partitions evenly, and those of one that dies within "
    "OwnershipExpireSeconds."
)


async def main(app: App, options: argparse.Namespace) -> None:
    """Until a signal comes. Raises SettingsError."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    logging.getLogger("azure").setLevel(logging.ERROR)  # what failed is told by the runner
    if options.handler:
        _override(options.handler)
    if app.settings.ingestion.hub is None:
        raise SettingsError([f"{EVENT_HUB} = '': must be set to read events"])
    runner = Runner(app)
    stopping = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stopping.set)
    logging.info("[started] %s", runner.name)
    await runner.run(stopping)
    logging.info("[stopped] %s", runner.name)


def _override(handler: str) -> None:
    """The option is the setting, for this process."""
    if (folder := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, folder)
    settings.override(HANDLER, handler)
