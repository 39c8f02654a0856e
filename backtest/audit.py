"""``python -m backtest audit``: what a plan cost, and what other rules would have cost."""

from __future__ import annotations

import argparse
import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from backtest import PROGRAM
from backtest.audit_answers import audit
from backtest.audit_model import findings
from backtest.audit_month import DAY_MINUTES, DAYS_MAX, Month, load_month, save_month
from backtest.audit_report import as_html, show
from backtest.autoscale_setting import PLAN
from backtest.errors import BacktestError
from backtest.import_autoscale import put, read_setting
from backtest.options import MINUTES_MAX, add_settings, bounded, read_settings
from backtest.progress import Progress
from backtest.rules_file import load_rules
from shared.settings import parse
from shared.values.text import whole

EXAMPLE = Path(__file__).parents[1] / "local" / "data" / "audit_example.json"
NAMESPACE = re.compile(
    r"(/subscriptions/[^/]+/resourceGroups/[^/]+/providers/Microsoft\.ServiceBus/namespaces/[^/]+)"
    r"/(?:queues/|topics/)?(.+)",
    re.IGNORECASE,
)


def audit_command(arguments: Sequence[str]) -> int:
    """Read or load a month, judge it, and print one screen."""
    options = parsed(arguments)
    read_settings(options, records=bool(options.history))
    own = load_rules(options.compare, options.resource) if options.compare else None
    month = _month(options)
    if options.instances or options.history:
        month = _with_instances(month, options)
    if options.setting and not options.plan:
        month = month.model_copy(update={"setting": read_setting(options.setting)})
    if options.rules and month.kind == "topic" and not options.subscription:
        raise BacktestError("--rules: they read one subscription of the topic. Give --subscription")
    limit, subscription = options.age_limit_minutes, options.subscription
    done = audit(findings(month), own, limit, subscription, Progress())
    show(done, Console(), options.price)
    if options.html:
        from backtest.plot import write  # noqa: PLC0415  slow to import and rarely needed

        write(options.html, as_html(done, options.price).encode())
    if options.rules:
        put(done.rules_text, options.rules)
    return 0


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=f"{PROGRAM} audit",
        description="Say what a plan cost in the last days, what its autoscale setting, the "
        "default policy and your own rules would have cost, and how sure that is. It reads Azure "
        "Monitor with your own login (az login), for which Monitoring Reader is enough, and "
        "changes nothing.",
    )
    add = parser.add_argument
    add("--plan", metavar="RESOURCE_ID", help="the App Service plan to read from Azure")
    add("--queue", metavar="NAMESPACE/QUEUE", help="the Service Bus queue that it works on")
    add("--topic", metavar="NAMESPACE/TOPIC", help="the topic; the namespace may be a resource ID")
    add("--subscription", default="", metavar="NAME", help="the topic's subscription, for --rules")
    add("--days", type=bounded(whole, 1, DAYS_MAX), default=30, metavar="N", help="default: 30")
    add("--setting", type=Path, metavar="FILE", help="the autoscale setting, if not the plan's own")
    add(
        "--instances",
        type=Path,
        metavar="FILE",
        help="the plan's instances, as CSV with the columns time,instances",
    )
    add(
        "--history",
        metavar="RESOURCE",
        help="take the instances from the app's decision log (Storage Table Data Reader)",
    )
    add("--from", dest="file", type=Path, metavar="FILE", help="what --export has written")
    add("--example", action="store_true", help="the bundled, made-up week")
    add(
        "--export",
        type=Path,
        metavar="FILE",
        help="keep what is read; the same command continues an unfinished file",
    )
    add("--html", type=Path, metavar="FILE", help="write the screen and the pictures, as one file")
    add("--rules", type=Path, metavar="FILE", help="write the default policy; a file is kept")
    add("--compare", type=Path, metavar="FILE", help="judge this rules file, too")
    add("--resource", metavar="NAME", help="the resource of --compare, if it has several")
    add_settings(parser)
    add(
        "--age-limit-minutes",
        type=bounded(whole, 1, MINUTES_MAX),
        default=5,
        metavar="L",
        help="minutes after which a waiting message is late (default: %(default)s)",
    )
    options = parser.parse_args(arguments)
    if sum(map(bool, (options.plan, options.file, options.example))) != 1:
        parser.error("give one of --plan, --from and --example")
    if bool(options.plan) != (bool(options.queue) + bool(options.topic) == 1):
        parser.error("--plan needs either --queue or --topic, and these need --plan")
    if options.instances and options.history:
        parser.error("give either --instances or --history")
    if options.plan and not PLAN.fullmatch(options.plan):
        parser.error(f"--plan {options.plan}: must be the resource ID of an App Service plan")
    options.plan = options.plan and options.plan.rstrip("/")
    return options


def _month(options: argparse.Namespace) -> Month:
    if options.plan:
        return asyncio.run(read(options))
    month = load_month(EXAMPLE if options.example else options.file)
    if not month.is_whole:
        raise BacktestError(
            f"{options.file}: only {month.minutes // DAY_MINUTES} of {month.days} days were read. "
            "The command that began it continues it, with --export"
        )
    if options.export:
        save_month(month, options.export)
    return month


def _with_instances(month: Month, options: argparse.Namespace) -> Month:
    from backtest import audit_instances  # noqa: PLC0415  heavy to import

    if options.instances:
        return audit_instances.from_file(month, options.instances)
    return audit_instances.from_log(month, options.history)


async def read(
    options: argparse.Namespace, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> Month:
    """The month from Azure. What --export names is continued, and kept after each day."""
    from backtest.audit_azure import Reader, new_month  # noqa: PLC0415  heavy to import

    entity, console, progress = _entity(options), Console(stderr=True), Progress()
    path, month = options.export, None
    if path and path.exists():
        month = load_month(path)
        asked = f"{options.days} days of {entity[1]} {entity[2]}, {entity[0]}, {options.plan}"
        kept = f"{month.days} days of {month.kind} {month.entity}, {month.namespace}, {month.plan}"
        if kept.lower() != asked.lower():
            raise BacktestError(f"{path}: has {kept}. Name another file for {asked}")
    tell = partial(console.print, markup=False, highlight=False)
    reader = Reader(parse()[0].arm_endpoint, tell, sleep)
    try:
        if month is None:
            setting: Any = read_setting(options.setting) if options.setting else None
            month = await new_month(reader, options.plan, entity, options.days, setting)
        with progress.task("days of Azure Monitor", month.days - month.minutes // DAY_MINUTES):
            while not month.is_whole:
                month = month.extended(await reader.day(month))
                progress.advance(1)
                if path:
                    save_month(month, path)
        return month
    finally:
        await reader.close()


def _entity(options: argparse.Namespace) -> tuple[str, str, str]:
    """The resource ID of the namespace, the kind and the name."""
    kind, text = ("queue", options.queue) if options.queue else ("topic", options.topic)
    if found := NAMESPACE.fullmatch(text):
        return found[1], kind, found[2]
    namespace, _, name = text.partition("/")
    if not (namespace and name):
        raise BacktestError(f"--{kind} {text}: must be NAMESPACE/{kind.upper()}, as bus/orders")
    group = re.split("/providers/", options.plan, flags=re.IGNORECASE)[0]
    return f"{group}/providers/Microsoft.ServiceBus/namespaces/{namespace}", kind, name
