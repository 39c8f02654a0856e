"""Read ports → decide → write ports."""

from shared.messaging.flows import check_queues, poison, process_dataset, telemetry_arrived

__all__ = ["check_queues", "poison", "process_dataset", "telemetry_arrived"]
