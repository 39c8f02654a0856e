"""`App`, the object that builds each part of the app on first use and closes what it built.

Each part is an attribute. A test may assign its own part, such as a twin, which it must close.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, Self, TypeVar

from shared.autoscaling.deciding.validation import failing_policies, misread_totals
from shared.autoscaling.policy import Resource
from shared.azure.invocation import lines
from shared.settings import Settings
from shared.settings.connections import HOST_STORAGE, StorageConnection
from shared.values.concurrency import JitteredRetrying
from shared.values.metering import Meter, no_meter
from shared.values.urgency import TURN_SHARE
from shared.wiring import checks
from shared.wiring.scaling import ScalingParts

if TYPE_CHECKING:
    from shared.azure.budget import ArmBudget
    from shared.azure.tracing import Tracer
    from shared.values.concurrency import Retrying
    from shared.wiring.data_sets import DataSetParts
    from shared.wiring.ingestion import IngestionParts
    from shared.wiring.nightly import NightlyParts
    from shared.wiring.notifications import NotificationParts
    from shared.wiring.web import WebParts

log = logging.getLogger(__name__)

P = ParamSpec("P")


class Closable(Protocol):
    async def close(self) -> None: ...


C = TypeVar("C", bound=Closable)


def utc_now() -> datetime:
    return datetime.now(UTC)


def _part(module: str, name: str) -> Any:
    """A part whose module is imported when the part is first used."""

    def built(app: App) -> Any:
        return getattr(import_module(f"shared.wiring.{module}"), name)(app)

    return cached_property(built)


class App:
    """All parts, by capability. The settings come from ``environ``, by default that of the process.
    Parts are built without awaiting, so a cancelled function never leaves a part half open. The
    caller must end all functions that use the app before closing it."""

    def __init__(
        self,
        environ: Mapping[str, str] | None = None,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self.now = now
        self._environ = environ
        self._opened = AsyncExitStack()
        self._opened.push_async_callback(_close_credentials)
        self._closed = False

    scaling = cached_property(ScalingParts)

    data_sets: DataSetParts = _part("data_sets", "DataSetParts")
    ingestion: IngestionParts = _part("ingestion", "IngestionParts")
    nightly: NightlyParts = _part("nightly", "NightlyParts")
    notifications: NotificationParts = _part("notifications", "NotificationParts")
    web: WebParts = _part("web", "WebParts")

    @cached_property
    def checked(self) -> checks.Checked:
        """The settings and the rules. Raises SettingsError."""
        return checks.check(self._environ)

    @property
    def settings(self) -> Settings:
        return self.checked.settings

    @property
    def resources(self) -> Mapping[str, Resource]:
        return self.checked.resources

    @property
    def storage(self) -> StorageConnection:
        """The storage account with the app's queues and state."""
        return self.settings.storage(HOST_STORAGE)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Probable mistakes in settings and rules that do not keep the app from starting."""
        return tuple(warning for warnings in self._warnings.values() for warning in warnings)

    @cached_property
    def _warnings(self) -> Mapping[str, Sequence[str]]:
        """The warnings by the action under which they are logged."""
        return {
            "setting_unknown": checks.warnings(self.settings),
            "host_json_doubtful": self.checked.host_json,
            "rule_doubtful": misread_totals(self.resources.values()),
            "rule_renamed": self.checked.renamed,
        }

    def log_warnings(self) -> None:
        for action, warnings in self._warnings.items():
            for warning in warnings:
                lines.warn(log, action, warning)
        for warning in failing_policies(tuple(self.resources.values())):
            lines.warn(log, "policy_fails", warning)

    @cached_property
    def retry(self) -> Retrying:
        return JitteredRetrying()

    @cached_property
    def arm_budget(self) -> ArmBudget:
        """The limits that all clients of Azure Resource Manager share."""
        from shared.azure.budget import ROUTINE_SECONDS_MAX, ArmBudget  # noqa: PLC0415  heavy

        source, order = self.settings.source_timeout_seconds, self.settings.arm_timeout_seconds
        routine = min(ROUTINE_SECONDS_MAX, source * TURN_SHARE)
        return self.open(ArmBudget, routine_seconds=routine, urgent_seconds_max=order * TURN_SHARE)

    @cached_property
    def meter(self) -> Meter:
        """Records measurements if telemetry is exported. The first access starts the export."""
        to = self.settings.notifications
        if not to.telemetry and not to.otlp_endpoint:
            return no_meter
        from shared.azure.meter import OpenTelemetryMeter  # noqa: PLC0415  heavy
        from shared.azure.telemetry import export  # noqa: PLC0415  heavy

        export(self.settings.environ)
        return OpenTelemetryMeter()

    @cached_property
    def tracer(self) -> Tracer | None:
        """Records spans and durations. None if no telemetry is exported."""
        if self.meter is no_meter:
            return None
        from shared.azure.tracing import Tracer  # noqa: PLC0415  heavy

        return Tracer(self.settings.environ.get("WEBSITE_SITE_NAME"), self.meter)

    def carrying(self, texts: Sequence[str]) -> Sequence[str]:
        """The messages, which continue the current span if there is one; see Tracer."""
        return self.tracer.carrying(texts) if self.tracer else texts

    def open(self, make: Callable[P, C], *args: P.args, **kwargs: P.kwargs) -> C:
        """Build a part that the app closes when it is closed. Raises RuntimeError after that."""
        if self._closed:
            raise RuntimeError("the app is closed and opens no further parts")
        part = make(*args, **kwargs)
        self._opened.push_async_callback(part.close)
        return part

    async def close(self) -> None:
        """Close all parts in reverse order, even if one fails to close."""
        self._closed = True
        lines.release()
        await self._opened.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_details: object) -> None:
        await self.close()


async def _close_credentials() -> None:
    """Close the credentials that all clients of this process share, if any client was built."""
    if credentials := sys.modules.get("shared.azure.credentials"):
        await credentials.close()
