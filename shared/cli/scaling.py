"""What is decided and why, and overrides of it: ``status`` to ``override``."""

from __future__ import annotations

import getpass
import uuid
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from shared.autoscaling.declaring import Mode
from shared.autoscaling.flows import check_connections as connected
from shared.autoscaling.flows import override as control
from shared.autoscaling.flows import preview, status
from shared.autoscaling.flows.common import find
from shared.autoscaling.operating.overrides import Change, duration
from shared.autoscaling.policy import Resource
from shared.autoscaling.state import Override
from shared.cli import tables
from shared.cli.command import Answer, command, group
from shared.wiring.app import App

commands = typer.Typer()
overrides = group("Override what the rules decide.")
commands.add_typer(overrides, name="override")


def _user() -> str:
    """Empty where the system has no name for who runs this, as in some containers."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return ""


Name = Annotated[
    str,
    typer.Argument(metavar="RESOURCE", show_default=False, help="As scaling_rules.py names it."),
]
Reason = Annotated[str, typer.Option(help="For the decision log.")]
Lasts = Annotated[
    str,
    typer.Option(
        "--for", metavar="2h", show_default=False, help="90m, 2h, 1d12h; else until it is cleared."
    ),
]
Author = Annotated[
    str, typer.Option(default_factory=_user, show_default="your user name", help="Who decides so.")
]


@command(commands, "status")
async def show_status(app: App, resource: Name = "") -> Answer:
    """Show each resource as it stands."""
    return await status.run(_named(app, resource), app.scaling.store), tables.status


@command(commands, "decisions")
async def show_decisions(
    app: App,
    resource: Name = "",
    limit: Annotated[int, typer.Option(min=1, max=status.LINES_MAX, metavar="N")] = 20,
    why: Annotated[
        bool,
        typer.Option("--why", help="With every rule's wish, what limited it, and the numbers."),
    ] = False,
) -> Answer:
    """Show the newest lines of the decision log."""
    lines = await status.decisions(_one(app, resource), app.scaling.store, limit)
    return lines, tables.reasons if why else tables.decisions


@command(commands, "dry-run")
async def dry_run(app: App, resource: Name = "") -> Answer:
    """Show what would be decided right now."""
    patience = app.settings.source_timeout_seconds
    reader = app.scaling.reader
    previews = [
        (await preview.run(each, app.scaling.store, reader, patience)).shown()
        for each in _named(app, resource)
    ]
    return previews, tables.previews


@command(commands, "validate")
async def validate(
    app: App,
    resource: Name = "",
    connect: Annotated[
        bool, typer.Option("--connect", help="And every source and permission.")
    ] = False,
) -> Answer:
    """Check rules and settings."""
    resources = _named(app, resource)
    checks: list[dict[str, Any]] = []
    if connect:
        patience = app.settings.source_timeout_seconds
        access = (app.scaling.reader, app.scaling.permissions, app.scaling.store)
        checks = await connected.run(resources, *access, patience)
    answer = {
        "ok": all(check["ok"] for check in checks),
        "resources": [each.name for each in resources],
        "warnings": app.warnings,
        "checks": checks,
    }
    return answer, tables.checks


@command(commands, "pause")
async def pause(
    app: App, reason: Reason, by: Author, resource: Name = "", lasts: Lasts = ""
) -> Answer:
    """Decide nothing for a while."""
    return await _change(app, resource, Override(Mode.PAUSED, reason), by, lasts)


@command(commands, "resume")
@command(overrides, "clear")
async def clear_override(app: App, by: Author, resource: Name = "") -> Answer:
    """Go back to the rules."""
    return await _change(app, resource, None, by)


@command(overrides, "set")
async def set_override(  # noqa: PLR0913  a parameter is an option
    app: App,
    reason: Reason,
    by: Author,
    resource: Name = "",
    *,
    floor: Annotated[int | None, typer.Option(metavar="N", help="At least N instances.")] = None,
    exact: Annotated[
        int | None, typer.Option(metavar="N", help="Exactly N, cooldown or not.")
    ] = None,
    freeze_in: Annotated[bool, typer.Option("--freeze-in", help="No scale-in.")] = False,
    mode: Mode | None = None,
    lasts: Lasts = "",
) -> Answer:
    """Override the rules; this replaces an earlier override."""
    wanted = Override(mode=mode, reason=reason, freeze_scale_in=freeze_in, floor=floor, exact=exact)
    return await _change(app, resource, wanted, by, lasts)


async def _change(
    app: App, resource: str, override: Override | None, by: str, lasts: str = ""
) -> Answer:
    change = Change(override, by, uuid.uuid4().hex, duration(lasts) if lasts else None)
    of = _one(app, resource)
    line = await control.run(of, change, app.scaling.store)
    return {"ok": True, "resource": of.name, "said": line.reason}, tables.override


def _named(app: App, name: str) -> Sequence[Resource]:
    known = app.resources
    return [find(known, name)] if name else list(known.values())


def _one(app: App, name: str) -> Resource:
    """The resource of this name; where there is but one it need not be named."""
    known = _named(app, name)
    return known[0] if len(known) == 1 else find(app.resources, "")
