"""The templates use no property that the Bicep compiler does not know.

The compiler reports a misspelt property only as a warning, and it is not installed everywhere. ARM
ignores most properties that it does not know: a misspelt `httpsOnly` would deploy without an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.infra.bicep import BicepFile, Declaration, Loop

INFRA = Path(__file__).parents[2] / "infra"
EVERY_RESOURCE = {"name", "location", "tags", "properties", "parent", "scope", "dependsOn"}

COMPILED_NAMES = {
    "Microsoft.Authorization/roleAssignments": "principalId principalType roleDefinitionId",
    "Microsoft.Authorization/roleDefinitions": """
        actions assignableScopes dataActions description notActions notDataActions permissions
        roleName type""",
    "Microsoft.EventGrid/systemTopics": "identity source topicType type",
    "Microsoft.EventGrid/systemTopics/eventSubscriptions": """
        blobContainerName deadLetterDestination deadLetterWithResourceIdentity
        deliveryWithResourceIdentity destination endpointType eventDeliverySchema
        eventTimeToLiveInMinutes filter identity includedEventTypes maxDeliveryAttempts
        queueMessageTimeToLiveInSeconds queueName resourceId retryPolicy subjectBeginsWith type""",
    "Microsoft.EventHub/namespaces": """
        capacity disableLocalAuth minimumTlsVersion publicNetworkAccess sku tier""",
    "Microsoft.EventHub/namespaces/eventhubs": """
        cleanupPolicy partitionCount retentionDescription retentionTimeInHours""",
    "Microsoft.EventHub/namespaces/eventhubs/consumergroups": "",
    "Microsoft.EventHub/namespaces/networkRuleSets": """
        defaultAction publicNetworkAccess trustedServiceAccessEnabled""",
    "Microsoft.Insights/actionGroups": """
        emailAddress emailReceivers enabled groupShortName useCommonAlertSchema""",
    "Microsoft.Insights/components": """
        Application_Type DisableLocalAuth WorkspaceResourceId kind publicNetworkAccessForIngestion
        publicNetworkAccessForQuery""",
    "Microsoft.Insights/diagnosticSettings": "category enabled logs storageAccountId workspaceId",
    "Microsoft.Insights/metricAlerts": """
        actionGroupId actions allOf criteria criterionType description dimensions enabled
        evaluationFrequency metricName metricNamespace odata.type operator scopes severity
        threshold timeAggregation values windowSize""",
    "Microsoft.Insights/scheduledQueryRules": """
        actionGroups actions allOf autoMitigate criteria description displayName enabled
        evaluationFrequency failingPeriods minFailingPeriodsToAlert numberOfEvaluationPeriods
        operator query scopes severity skipQueryValidation threshold timeAggregation windowSize""",
    "Microsoft.Insights/workbooks": """
        category displayName fallbackResourceIds kind serializedData sourceId""",
    "Microsoft.ManagedIdentity/userAssignedIdentities": "",
    "Microsoft.Network/privateDnsZones": "",
    "Microsoft.Network/privateDnsZones/virtualNetworkLinks": """
        id registrationEnabled virtualNetwork""",
    "Microsoft.Network/privateEndpoints": """
        groupIds id privateLinkServiceConnections privateLinkServiceId subnet""",
    "Microsoft.Network/privateEndpoints/privateDnsZoneGroups": """
        privateDnsZoneConfigs privateDnsZoneId""",
    "Microsoft.OperationalInsights/workspaces": """
        disableLocalAuth features publicNetworkAccessForIngestion publicNetworkAccessForQuery
        retentionInDays sku""",
    "Microsoft.Resources/resourceGroups": "",
    "Microsoft.ServiceBus/namespaces": """
        disableLocalAuth minimumTlsVersion publicNetworkAccess sku tier""",
    "Microsoft.ServiceBus/namespaces/queues": """
        deadLetteringOnMessageExpiration duplicateDetectionHistoryTimeWindow forwardTo lockDuration
        maxDeliveryCount requiresDuplicateDetection requiresSession""",
    "Microsoft.ServiceBus/namespaces/topics": "",
    "Microsoft.ServiceBus/namespaces/topics/subscriptions": "deadLetteringOnMessageExpiration",
    "Microsoft.Storage/storageAccounts": """
        allowBlobPublicAccess allowCrossTenantReplication allowSharedKeyAccess bypass defaultAction
        defaultToOAuthAuthentication kind minimumTlsVersion networkAcls publicNetworkAccess sku
        supportsHttpsTrafficOnly""",
    "Microsoft.Storage/storageAccounts/blobServices": """
        containerDeleteRetentionPolicy days deleteRetentionPolicy enabled""",
    "Microsoft.Storage/storageAccounts/blobServices/containers": "",
    "Microsoft.Storage/storageAccounts/queueServices": "",
    "Microsoft.Storage/storageAccounts/queueServices/queues": "",
    "Microsoft.Storage/storageAccounts/tableServices": "",
    "Microsoft.Storage/storageAccounts/tableServices/tables": "",
    "Microsoft.Web/serverfarms": "kind reserved sku tier zoneRedundant",
    "Microsoft.Web/sites": """
        alwaysReady authentication deployment functionAppConfig http20Enabled httpsOnly identity
        instanceMemoryMB kind maximumInstanceCount minTlsVersion publicNetworkAccess runtime
        scaleAndConcurrency scmMinTlsVersion serverFarmId siteConfig siteUpdateStrategy storage type
        userAssignedIdentities userAssignedIdentityResourceId value version
        virtualNetworkSubnetId""",
    "Microsoft.Web/sites/basicPublishingCredentialsPolicies": "allow",
    "Microsoft.Web/sites/config": "",
}
"""The names in each type of resource, at any depth, with which Bicep 0.49.2 compiled the templates
without a warning. The compiler does not know `location` of basicPublishingCredentialsPolicies,
which ARM requires (https://github.com/Azure/bicep/issues/7396), nor `siteUpdateStrategy`
(https://learn.microsoft.com/azure/azure-functions/flex-consumption-site-updates)."""

RESOURCES = [
    each
    for path in sorted(INFRA.rglob("*.bicep"))
    for each in BicepFile(path).of_kind("resource")
    if not each.exists_already
]


def property_names(value: Any) -> Iterator[str]:
    """All names in a resource, except those that the template's user chooses."""
    if isinstance(value, Loop):
        yield from property_names(value.body)
    elif isinstance(value, list):
        for each in value:
            yield from property_names(each)
    elif isinstance(value, dict):
        for name, inner in value.items():
            if not name.startswith("${"):
                yield name
            if name != "tags":
                yield from property_names(inner)


@pytest.mark.parametrize("resource", RESOURCES, ids=lambda each: f"{each.of}-{each.name}")
def test_every_property_of_a_resource_is_one_that_the_compiler_knows(resource: Declaration) -> None:
    of = resource.of.split("@")[0]
    assert of in COMPILED_NAMES, "compile the templates (make infra), then add the type here"
    known = EVERY_RESOURCE | set(COMPILED_NAMES[of].split())
    assert set(property_names(resource.value)) - known == set()


def test_no_type_of_the_table_is_unused() -> None:
    used = {each.of.split("@")[0] for each in RESOURCES}
    assert set(COMPILED_NAMES) == used
