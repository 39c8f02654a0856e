"""The flows of data set processing: each reads ports, decides, and writes to ports."""

from shared.trends.datasets.flows import check_queues, poison, process_dataset, telemetry_arrived

__all__ = ["check_queues", "poison", "process_dataset", "telemetry_arrived"]
