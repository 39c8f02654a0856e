"""compose.yaml and the configuration of the emulators fit the tests and the documented quotas."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.emulators import rig

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
SCRIPT = (rig.FOLDER / "run.sh").read_text()
HUBS = {hub["Name"]: hub for hub in rig.hubs_of_the_emulator()}


def test_the_emulator_declares_the_hubs_that_tests_ask_for() -> None:
    empty = {name: count for count, names in rig.EMPTY_HUBS.items() for name in names}
    partitions = {name: int(hub["PartitionCount"]) for name, hub in HUBS.items()}
    assert partitions == {rig.HUB: rig.PARTITIONS, **empty}
    groups = {
        name: [group["Name"] for group in hub["ConsumerGroups"]] for name, hub in HUBS.items()
    }
    assert groups.pop(rig.HUB) == [*rig.GROUPS]
    assert all(each == ["readback"] for each in groups.values())


def test_the_hubs_are_within_the_quotas_of_the_emulator() -> None:
    """https://learn.microsoft.com/azure/event-hubs/overview-emulator#usage-quotas"""
    assert len(HUBS) <= 10
    for hub in HUBS.values():
        assert isinstance(hub["PartitionCount"], str)
        assert 1 <= int(hub["PartitionCount"]) <= 32
        groups = [group["Name"].lower() for group in hub["ConsumerGroups"]]
        assert 1 <= len(groups) <= 20
        assert "$default" not in groups, "the emulator creates it"


@pytest.mark.parametrize(
    ("file", "key", "name"),
    [
        ("event_hubs.json", "NamespaceConfig", "emulatorNs1"),
        ("service_bus.json", "Namespaces", "sbemulatorns"),
    ],
)
def test_the_namespaces_have_the_only_names_that_the_emulators_accept(
    file: str, key: str, name: str
) -> None:
    document = json.loads((rig.FOLDER / file).read_text())
    assert [each["Name"] for each in document["UserConfig"][key]] == [name]


@pytest.mark.parametrize(
    ("file", "key"), [("event_hubs.json", "LoggingConfig"), ("service_bus.json", "Logging")]
)
def test_the_emulators_log_where_compose_shows_it(file: str, key: str) -> None:
    document = json.loads((rig.FOLDER / file).read_text())
    assert document["UserConfig"][key] == {"Type": "Console"}


def test_service_bus_starts_only_when_sql_server_answers() -> None:
    """The emulator tries for about 90 seconds, and a new SQL Server may need longer."""
    services = COMPOSE["services"]
    assert services["service-bus"]["depends_on"] == {"sql": {"condition": "service_healthy"}}
    health = services["sql"]["healthcheck"]
    assert "SELECT 1" in health["test"]
    assert int(health["interval"].removesuffix("s")) * health["retries"] >= 300


def test_images_have_a_version() -> None:
    for service in COMPOSE["services"].values():
        tag = r":(\$\{\w+:-)?\d+\.\d+\.\d+\}?(@sha256:[0-9a-f]{64})?$"
        assert re.search(rf"{tag}|server:2022-latest@sha256:[0-9a-f]{{64}}$", service["image"])


def test_the_emulator_of_service_bus_is_one_in_which_queues_can_be_created() -> None:
    """github.com/Azure/azure-service-bus-emulator-installer/issues/17: from version 2.0.0 on."""
    image = COMPOSE["services"]["service-bus"]["image"]
    (default,) = re.findall(r"\$\{SERVICE_BUS_EMULATOR_TAG:-(\d+)\.\d+\.\d+\}", image)
    assert int(default) >= 2


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
    assert str(rig.DEFAULT_PORT) in published


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
