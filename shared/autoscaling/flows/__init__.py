"""The functions of the app without their triggers: they read ports, decide and write ports."""

from shared.autoscaling.flows import (
    metric_collector,
    poison,
    reconciler,
    retention,
    scaler,
    scaling_logic,
)

__all__ = [
    "metric_collector",
    "poison",
    "reconciler",
    "retention",
    "scaler",
    "scaling_logic",
]
