"""``run``: read the event hub outside Functions, as one process among any number."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import logging
import signal
import sys
from pathlib import Path
from typing import Any

from shared import wiring_ingestion
from shared.settings import SettingsError
from shared.settings_ingestion import EVENT_HUB
from shared.wiring_runner import HandlerOf, Runner


def add(commands: Any) -> None:
    run = commands.add_parser("run", help="read the event hub outside Functions", description=TOLD)
    run.add_argument(
        "--handler",
        metavar="MODULE:NAME",
        help="what handles events instead of the app's own handler: a function that takes a "
        "Stream and gives an async function from Event to Effect",
    )
    run.set_defaults(run=main)


TOLD = (
    "Reads its share of the partitions until SIGTERM or Ctrl-C; start as many processes as you "
    "like. They share the partitions evenly, and those of one that dies within "
    "OwnershipExpireSeconds."
)


async def main(options: argparse.Namespace) -> None:
    """Until a signal comes. Raises SettingsError."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    logging.getLogger("azure").setLevel(logging.ERROR)  # what failed is told by the runner
    if wiring_ingestion.settings().hub is None:
        raise SettingsError([f"{EVENT_HUB} = '': must be set to read events"])
    runner = Runner(_handler(options.handler))
    stopping = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stopping.set)
    logging.info("[started] %s", runner.name)
    await runner.run(stopping)
    logging.info("[stopped] %s", runner.name)


def _handler(name: str | None) -> HandlerOf:
    if name is None:
        return wiring_ingestion.handler
    module, _, function = name.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found: HandlerOf = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise SettingsError([f"--handler {name}: {type(error).__name__}: {error}"]) from error
    return found
