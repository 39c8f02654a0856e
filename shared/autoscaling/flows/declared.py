"""What a message names must have been declared in scaling_rules.py."""

from __future__ import annotations

from collections.abc import Mapping

from shared.autoscaling.errors import UnknownResource
from shared.autoscaling.measurements import CAPACITY_METRIC
from shared.autoscaling.policy import Resource
from shared.values.untrusted import shown


def find(resources: Mapping[str, Resource], name: str) -> Resource:
    if name not in resources:
        known = ", ".join(sorted(resources)) or "none"
        raise UnknownResource(
            f"resource {shown(name)} is not declared in scaling_rules.py (known: {known})"
        )
    return resources[name]


def check_metric_name(resource: Resource, name: str) -> None:
    if name != CAPACITY_METRIC and name not in resource.metrics:
        known = ", ".join(sorted(resource.metrics))
        raise UnknownResource(
            f"metric {shown(name)} of {resource.name!r} is not declared in scaling_rules.py "
            f"(known: {known})"
        )
