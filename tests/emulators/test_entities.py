"""compose.yaml and the configuration of the emulators fit the tests and the documented quotas."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.emulators import rig

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
SCRIPT = (rig.FOLDER / "run.sh").read_text()


def only(values: Any) -> Any:
    (value,) = values
    return value


def test_the_emulators_declare_the_entities_of_the_stand_in() -> None:
    namespace = only(rig.declared_entities("service_bus.json"))
    queues = {queue["Name"]: queue["Properties"] for queue in namespace["Queues"]}
    assert set(queues) == {rig.JOBS, rig.DAILY}
    assert not queues[rig.JOBS]["RequiresDuplicateDetection"]
    assert queues[rig.DAILY]["RequiresDuplicateDetection"]
    minutes = rig.WINDOW.total_seconds() / 60
    assert queues[rig.DAILY]["DuplicateDetectionHistoryTimeWindow"] == f"PT{minutes:.0f}M"
    topic = only(namespace["Topics"])
    assert (topic["Name"], only(topic["Subscriptions"])["Name"]) == (rig.TOPIC, rig.SUBSCRIPTION)
    hub = only(only(rig.declared_entities("event_hubs.json"))["Entities"])
    assert (hub["Name"], int(hub["PartitionCount"])) == (rig.HUB, rig.PARTITIONS)
    assert tuple(group["Name"] for group in hub["ConsumerGroups"]) == rig.GROUPS


def test_the_entities_are_within_the_quotas_of_the_emulators() -> None:
    """https://learn.microsoft.com/azure/service-bus-messaging/overview-emulator#usage-quotas"""
    namespace = only(rig.declared_entities("service_bus.json"))
    assert len(namespace["Queues"]) + len(namespace["Topics"]) <= 50
    for queue in namespace["Queues"]:
        assert queue["Properties"]["DefaultMessageTimeToLive"] == "PT1H"
    hub = only(only(rig.declared_entities("event_hubs.json"))["Entities"])
    assert int(hub["PartitionCount"]) <= 32
    assert len(hub["ConsumerGroups"]) <= 20
    # The emulators refuse another name.
    assert namespace["Name"] == "sbemulatorns"
    assert only(rig.declared_entities("event_hubs.json"))["Name"] == "emulatorNs1"


def test_the_files_that_compose_mounts_exist() -> None:
    mounts = [m for each in COMPOSE["services"].values() for m in each.get("volumes", [])]
    assert len(mounts) == 2
    for mount in mounts:
        assert (ROOT / mount.partition(":")[0]).is_file(), mount


def test_the_script_connects_to_the_published_ports() -> None:
    published = {
        port.split(":")[1] for each in COMPOSE["services"].values() for port in each["ports"] or []
    }
    used = set(re.findall(r"(?:localhost|127\.0\.0\.1):(\d+)", SCRIPT))
    assert used
    assert used <= published
    assert str(rig.ADMINISTRATION_PORT) in published


def test_nothing_is_published_beyond_this_machine() -> None:
    for name, service in COMPOSE["services"].items():
        for port in service["ports"]:
            assert port.startswith("127.0.0.1:"), name


def test_no_licence_is_accepted_for_the_user() -> None:
    """Starting the emulators and SQL Server accepts Microsoft's licences."""
    for name, service in COMPOSE["services"].items():
        accepted = service.get("environment", {}).get("ACCEPT_EULA")
        if name != "azurite":
            assert accepted is not None
            assert accepted.startswith("${ACCEPT_EULA:?"), name


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("Endpoint=sb://localhost;Key=k;", "Endpoint=sb://localhost:5300;Key=k;"),
        ("Endpoint=sb://localhost:5672/;Key=k;", "Endpoint=sb://localhost:5300/;Key=k;"),
    ],
)
def test_administration_has_a_port_of_its_own(given: str, expected: str) -> None:
    assert rig.with_port(given, 5300) == expected
