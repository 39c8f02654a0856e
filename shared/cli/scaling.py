"""The commands for scaling: status, decisions, dry run, validation, and overrides."""

from __future__ import annotations

import getpass
import uuid
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from shared.autoscaling.deciding.validation import failing_policies
from shared.autoscaling.declaring import Mode
from shared.autoscaling.flows import check_connections as connected
from shared.autoscaling.flows import override as control
from shared.autoscaling.flows import preview, status
from shared.autoscaling.flows.common import find
from shared.autoscaling.operating.first_hour import first_hour
from shared.autoscaling.operating.overrides import Change, duration
from shared.autoscaling.policy import Resource
from shared.autoscaling.state import Override
from shared.cli import tables
from shared.cli.command import Answer, Misused, Moment, command, group, say
from shared.settings import SettingsError
from shared.wiring.app import App
from shared.wiring.checks import use_rules
from shared.wiring.remedies import with_remedy

commands = typer.Typer()
overrides = group("Override the rules.")
commands.add_typer(overrides, name="override")


def _user() -> str:
    """The user's name; empty if the system has none, as in some containers."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return ""


Name = Annotated[
    str,
    typer.Argument(metavar="RESOURCE", show_default=False, help="The name in scaling_rules.py."),
]
Reason = Annotated[str, typer.Option(help="For the decision log.")]
Lasts = Annotated[
    str,
    typer.Option(
        "--for", metavar="2h", show_default=False, help="90m, 2h, 1d12h; default: until cleared."
    ),
]
RulesFile = Annotated[
    Path | None,
    typer.Option(
        "--rules", metavar="FILE", exists=True, dir_okay=False, help="Instead of scaling_rules.py."
    ),
]
Author = Annotated[
    str, typer.Option(default_factory=_user, show_default="your user name", help="The author.")
]


@command(commands, "status")
async def show_status(app: App, resource: Name = "") -> Answer:
    """Show the current state of each resource."""
    minutes = app.settings.notifications.at_maximum_minutes
    told = (app.scaling.store, minutes, app.settings.price_per_instance_hour)
    return await status.read_all(_named(app, resource), *told), tables.status


@command(commands, "decisions")
async def show_decisions(
    app: App,
    resource: Name = "",
    limit: Annotated[int, typer.Option(min=1, max=status.ENTRIES_MAX, metavar="N")] = 20,
    why: Annotated[
        bool,
        typer.Option("--why", help="Include all recommendations, limits, and evidence."),
    ] = False,
    at: Moment = None,
    since: Moment = None,
    until: Moment = None,
    changes: Annotated[
        bool, typer.Option("--changes", help="Leave out decisions that request nothing.")
    ] = False,
) -> Answer:
    """Show the newest entries of the decision log.

    With --at, show the decision that applied at that time, and the newest change until then.
    """
    declared, store = _one(app, resource), app.scaling.store
    if since and until and until <= since:
        raise Misused(f"--until {until} must be later than --since {since}")
    if at is not None:
        if since or until or changes:
            raise Misused("--at shows one time: give it without --since, --until and --changes")
        return await status.read_at(declared, store, at), partial(tables.decisions, why=True)
    part = status.read_decisions(declared, store, limit, since, until, changes_only=changes)
    return await part, partial(tables.decisions, why=why)


@command(commands, "dry-run")
async def dry_run(app: App, resource: Name = "", rules: RulesFile = None) -> Answer:
    """Show the decision that the rules would make now."""
    if rules:
        use_rules(rules)
    timeout = app.settings.source_timeout_seconds
    scaling = app.scaling
    read = (scaling.store, scaling.reader, timeout)
    previews = [await preview.make_preview(each, *read) for each in _named(app, resource)]
    return previews, tables.previews


@command(commands, "validate")
async def validate(
    app: App,
    resource: Name = "",
    connect: Annotated[
        bool,
        typer.Option("--connect", help="Also check all sources, the event hub, and permissions."),
    ] = False,
    rules: RulesFile = None,
) -> Answer:
    """Check the rules and the settings."""
    if rules:
        use_rules(rules)
    resources = _named(app, resource)
    if wrong := failing_policies(resources):
        raise SettingsError(wrong)
    checks: list[dict[str, Any]] = []
    advice: Sequence[str] = ()
    if connect:
        timeout = app.settings.source_timeout_seconds
        access = (app.scaling.reader, app.scaling.permissions, app.scaling.store)
        checks = await connected.check_all(resources, *access, timeout)
        advice = app.scaling.reader.advice()
        if app.settings.ingestion.hub is not None:
            checks += await app.ingestion.check_hub()
        checks = [
            {**check, "told": with_remedy(check["told"], check["resource"])} for check in checks
        ]
    answer = {
        "ok": all(check["ok"] for check in checks),
        "resources": [each.name for each in resources],
        "first_hour": [
            {"resource": each.name, "told": told}
            for each in resources
            if (told := first_hour(each))
        ],
        "warnings": [*app.warnings, *advice],
        "checks": checks,
    }
    return answer, tables.checks


@command(commands, "pause")
async def pause(
    app: App, reason: Reason, by: Author, resource: Name = "", lasts: Lasts = ""
) -> Answer:
    """Pause the decisions."""
    return await _change(app, resource, Override(Mode.PAUSED, reason), by, lasts)


@command(commands, "resume")
@command(overrides, "clear")
async def clear_override(app: App, by: Author, resource: Name = "") -> Answer:
    """Clear the override, so that the rules decide again."""
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
        int | None, typer.Option(metavar="N", help="Exactly N, ignoring cooldowns.")
    ] = None,
    freeze_in: Annotated[bool, typer.Option("--freeze-in", help="No scale-in.")] = False,
    mode: Mode | None = None,
    lasts: Lasts = "",
) -> Answer:
    """Set an override of the rules. It replaces any earlier one."""
    override = Override(
        mode=mode, reason=reason, freeze_scale_in=freeze_in, floor=floor, exact=exact
    )
    return await _change(app, resource, override, by, lasts)


async def _change(
    app: App, resource: str, override: Override | None, by: str, lasts: str = ""
) -> Answer:
    change = Change(override, by, uuid.uuid4().hex, duration(lasts) if lasts else None)
    target = _one(app, resource)
    entry = await control.set_override(target, change, app.scaling.store)
    if override and not lasts:
        say(
            f"note: this lasts until you clear it; --for sets a time (override clear {target.name})"
        )
    return {"ok": True, "resource": target.name, "said": entry.reason}, tables.override


def _named(app: App, name: str) -> Sequence[Resource]:
    """The resource of this name, or all resources if the name is empty."""
    return [find(app.resources, name)] if name else list(app.resources.values())


def _one(app: App, name: str) -> Resource:
    """The resource of this name. The name may be empty if there is only one resource."""
    resources = _named(app, name)
    if len(resources) != 1:
        raise Misused(f"name one of the resources: {', '.join(app.resources) or 'there is none'}")
    return resources[0]
