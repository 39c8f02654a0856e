"""What is decided and why, and overrides of it: ``status`` to ``override``."""

from __future__ import annotations

import argparse
import getpass
import uuid
from collections.abc import Sequence
from typing import Any

from shared.autoscaling.declaring import Mode
from shared.autoscaling.flows import check_connections as connected
from shared.autoscaling.flows import override as control
from shared.autoscaling.flows import preview, status
from shared.autoscaling.flows.common import find
from shared.autoscaling.operating.overrides import Change, duration
from shared.autoscaling.policy import Resource
from shared.autoscaling.state import Override
from shared.cli import scaling_tables as console
from shared.wiring import autoscaling as wiring

# --- commands ---------------------------------------------------------------------------------


async def _status(options: argparse.Namespace) -> Any:
    return await status.run(_named(options), wiring.store())


async def _decisions(options: argparse.Namespace) -> Any:
    return await status.decisions(_one(options), wiring.store(), options.limit)


async def _dry_run(options: argparse.Namespace) -> Any:
    patience = wiring.settings().source_timeout_seconds
    reader = wiring.reader()
    return [
        (await preview.run(resource, wiring.store(), reader, patience)).shown()
        for resource in _named(options)
    ]


async def _validate(options: argparse.Namespace) -> Any:
    resources = _named(options)
    checks: list[dict[str, Any]] = []
    if options.connect:
        patience = wiring.settings().source_timeout_seconds
        access = (wiring.reader(), wiring.permissions(), wiring.store())
        checks = await connected.run(resources, *access, patience)
    return {
        "ok": all(check["ok"] for check in checks),
        "resources": [resource.name for resource in resources],
        "warnings": wiring.warnings(),
        "checks": checks,
    }


async def _pause(options: argparse.Namespace) -> Any:
    return await _change(options, Override(Mode.PAUSED, options.reason))


async def _set(options: argparse.Namespace) -> Any:
    wanted = Override(
        mode=Mode(options.mode) if options.mode else None,
        reason=options.reason,
        freeze_scale_in=options.freeze_in,
        floor=options.floor,
        exact=options.exact,
    )
    return await _change(options, wanted)


async def _clear(options: argparse.Namespace) -> Any:
    return await _change(options, None)


async def _change(options: argparse.Namespace, override: Override | None) -> Any:
    lasts = duration(options.lasts) if getattr(options, "lasts", None) else None
    change = Change(override, options.by, uuid.uuid4().hex, lasts)
    resource = _one(options)
    line = await control.run(resource, change, wiring.store())
    return {"ok": True, "resource": resource.name, "said": line.reason}


def _named(options: argparse.Namespace) -> Sequence[Resource]:
    known = wiring.resources()
    return [find(known, options.resource)] if options.resource else list(known.values())


def _one(options: argparse.Namespace) -> Resource:
    """The resource named; where there is but one it need not be."""
    found = _named(options)
    return found[0] if len(found) == 1 else find(wiring.resources(), "")


# --- command line -----------------------------------------------------------------------------


def add(commands: Any) -> None:
    _command(commands, "status", _status, console.status, "each resource as it stands")
    told = _command(commands, "decisions", _decisions, console.decisions, "the newest log lines")
    told.add_argument("--limit", type=int, choices=range(1, status.LINES_MAX + 1), default=20,
                      metavar="N", help="default: %(default)s")  # fmt: skip
    told.add_argument("--why", action="store_const", dest="show", const=console.reasons,
                      help="with every rule's wish, what limited it, and the numbers")  # fmt: skip
    _command(commands, "dry-run", _dry_run, console.previews, "what would be decided right now")
    check = _command(commands, "validate", _validate, console.checks, "check rules and settings")
    check.add_argument("--connect", action="store_true", help="and every source and permission")
    _reasoned(_command(commands, "pause", _pause, console.said, "decide nothing for a while"))
    _signed(_command(commands, "resume", _clear, console.said, "back to the rules"))
    overrides = commands.add_parser("override", help="put in a word over the rules")
    _override(overrides.add_subparsers(required=True, metavar="set|clear"))


def _override(commands: Any) -> None:
    words = _command(commands, "set", _set, console.said, "in place of what was said before")
    words.add_argument("--floor", type=int, metavar="N", help="at least N instances")
    words.add_argument("--exact", type=int, metavar="N", help="exactly N, cooldown or not")
    words.add_argument("--freeze-in", action="store_true", help="no scale-in")
    words.add_argument("--mode", choices=[str(mode) for mode in Mode])
    _reasoned(words)
    _signed(_command(commands, "clear", _clear, console.said, "back to the rules"))


def _command(commands: Any, name: str, run: Any, show: Any, told: str) -> Any:
    parser = commands.add_parser(name, help=told, description=told)
    parser.add_argument("resource", nargs="?", help="as scaling_rules.py names it")
    parser.add_argument("--json", action="store_true")
    parser.set_defaults(run=run, show=show)
    return parser


def _reasoned(parser: Any) -> None:
    parser.add_argument("--reason", required=True, help="for the decision log")
    parser.add_argument(
        "--for", dest="lasts", metavar="2h", help="90m, 2h, 1d12h; else until taken back"
    )
    _signed(parser)


def _signed(parser: Any) -> None:
    parser.add_argument("--by", default=_user(), help="who says so (%(default)s)")


def _user() -> str:
    """Empty where the system has no name for who runs this, as in some containers."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return ""
