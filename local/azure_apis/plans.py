"""App Service Plans in the JSON form of Azure Resource Manager (Microsoft.Web 2025-05-01)."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any, Self

Json = Mapping[str, Any]

# Instances a plan can have, by tier. Source: "App Service limits", Azure documentation.
MAXIMUM_CAPACITY_BY_TIER = {
    "Basic": 3,
    "Standard": 10,
    "Premium": 20,
    "PremiumV2": 30,
    "PremiumV3": 30,
    "ElasticPremium": 100,
    "IsolatedV2": 100,
}
ZONE_REDUNDANT_CAPACITY_MIN = 2

# Properties that a PUT resets to these values when it leaves them out: PUT replaces, not merges.
WRITABLE_DEFAULTS: Json = {
    "perSiteScaling": False,
    "elasticScaleEnabled": False,
    "maximumElasticWorkerCount": 1,
    "isSpot": False,
    "reserved": False,
    "isXenon": False,
    "hyperV": False,
    "targetWorkerCount": 0,
    "targetWorkerSizeId": 0,
    "zoneRedundant": False,
    "asyncScalingEnabled": False,
    "hostingEnvironmentProfile": None,
}


@dataclass(frozen=True, slots=True)
class Pieces:
    """How a plan with asynchronous scaling fills: ``size`` instances each ``seconds``.

    After ``most`` pieces it stands still until its target is changed, or, with ``ends_short``, the
    operation ends. What a plan shows meanwhile is not documented: with ``shows_ordered``, its
    `sku.capacity` is the ordered number at once, and with ``keeps_target``, `targetWorkerCount`
    keeps that number after the operation.
    """

    size: int = 3
    seconds: float = 60.0
    most: int | None = None
    ends_short: bool = False
    shows_ordered: bool = False
    keeps_target: bool = False

    def count(self, instances: int) -> int:
        """The number of pieces until a change by so many instances ends or stands still."""
        needed = ceil(instances / self.size)
        return needed if self.most is None else min(needed, self.most)


@dataclass(frozen=True, slots=True)
class PlanId:
    """Identifies a plan. Azure ignores the case of all three parts."""

    subscription: str
    resource_group: str
    name: str

    @property
    def key(self) -> str:
        return str(self).lower()

    def __str__(self) -> str:
        return (
            f"/subscriptions/{self.subscription}/resourceGroups/{self.resource_group}"
            f"/providers/Microsoft.Web/serverfarms/{self.name}"
        )


@dataclass(frozen=True, slots=True)
class Sku:
    """Size and tier, without the capacity, which changes."""

    name: str = "S1"
    tier: str = "Standard"
    size: str = "S1"
    family: str = "S"

    def put(self, body: Json) -> Self:
        if body.get("name", self.name) == self.name:
            return self
        name = str(body["name"])
        return type(self)(
            name=name,
            tier=body.get("tier", self.tier),
            size=body.get("size", name),
            family=body.get("family", name[:1]),
        )


S1 = Sku()
P1V3 = Sku(name="P1v3", tier="PremiumV3", size="P1v3", family="Pv3")
EP1 = Sku(name="EP1", tier="ElasticPremium", size="EP1", family="EP")
I1V2 = Sku(name="I1v2", tier="IsolatedV2", size="I1v2", family="Iv2")
F1 = Sku(name="F1", tier="Free", size="F1", family="F")
Y1 = Sku(name="Y1", tier="Dynamic", size="Y1", family="Y")
FC1 = Sku(name="FC1", tier="FlexConsumption", size="FC1", family="FC")


@dataclass(frozen=True, slots=True)
class Plan:
    """One App Service Plan. `properties` holds the writable properties that were put."""

    id: PlanId
    capacity: int = 1
    sku: Sku = S1
    location: str = "West Europe"
    kind: str = "app"
    tags: Mapping[str, str] = field(default_factory=dict)
    properties: Json = field(default_factory=dict)

    @property
    def capacity_max(self) -> int:
        return MAXIMUM_CAPACITY_BY_TIER.get(self.sku.tier, 1)

    @property
    def capacity_min(self) -> int:
        return ZONE_REDUNDANT_CAPACITY_MIN if self.properties.get("zoneRedundant") else 1

    @property
    def environment(self) -> str:
        """The resource ID of the App Service Environment of the plan; empty if it has none."""
        profile = self.properties.get("hostingEnvironmentProfile") or {}
        return str(profile.get("id", ""))

    @property
    def scales_asynchronously(self) -> bool:
        return bool(self.properties.get("asyncScalingEnabled"))

    @property
    def target(self) -> int:
        """The `targetWorkerCount` that was put; 0 if there is none."""
        return int(self.properties.get("targetWorkerCount") or 0)

    def put(self, body: Json) -> Self:
        """This plan after a PUT. Capacity and SKU keep their values if the body omits them."""
        sku = body.get("sku") or {}
        properties = body.get("properties") or {}
        return replace(
            self,
            capacity=sku.get("capacity", properties.get("numberOfWorkers", self.capacity)),
            sku=self.sku.put(sku),
            location=body.get("location", self.location),
            kind=body.get("kind", self.kind),
            tags=dict(body.get("tags") or {}),
            properties={name: properties[name] for name in WRITABLE_DEFAULTS if name in properties},
        )

    def to_json(self, ordered: int | None = None) -> dict[str, Any]:
        """The resource. `ordered` is the target capacity of a running operation."""
        return {
            "id": str(self.id),
            "name": self.id.name,
            "type": "Microsoft.Web/serverfarms",
            "kind": self.kind,
            "location": self.location,
            "tags": dict(self.tags),
            "properties": {**WRITABLE_DEFAULTS, **self.properties, **self._read_only(ordered)},
            "sku": {
                "name": self.sku.name,
                "tier": self.sku.tier,
                "size": self.sku.size,
                "family": self.sku.family,
                "capacity": self.capacity,
            },
        }

    def _read_only(self, ordered: int | None) -> dict[str, Any]:
        return {
            "name": self.id.name,
            "status": "Ready",
            "provisioningState": "Succeeded" if ordered is None else "InProgress",
            "numberOfWorkers": self.capacity,
            "currentNumberOfWorkers": self.capacity,
            "targetWorkerCount": ordered or self.target,
            "maximumNumberOfWorkers": self.capacity_max,
            "numberOfSites": 1,
            "geoRegion": self.location,
            "subscription": self.id.subscription,
            "resourceGroup": self.id.resource_group,
        }
