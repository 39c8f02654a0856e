"""``account``: how far each partition is, and which events are gone."""

from __future__ import annotations

import argparse
from typing import Any

from shared.cli import ingestion_tables
from shared.ingestion.operating import presenting as view
from shared.ingestion.operating import stream_account as account
from shared.wiring import ingestion_state as state

TOLD = (
    "Of each partition: up to which number every event has an outcome, under which epoch and by "
    "whom, and which numbers the hub had lost before they were taken in."
)


def add(commands: Any) -> None:
    parser = commands.add_parser("account", help="how far each partition is", description=TOLD)
    parser.add_argument("--json", action="store_true")
    parser.set_defaults(run=main, show=ingestion_tables.accounts)


async def main(_options: argparse.Namespace) -> Any:
    return view.accounts(await account.run(state.store()))
