// The event hub for metrics that arrive as events. One consumer group is for the trigger; the other
// is for reading events again that the host skipped.

param name string
param location string
param tags object
param principalId string
param hubName string
param consumerGroup string
param readBackConsumerGroup string
param publicNetworkAccess string

@description('Allow shared access policies. Diagnostic settings of Azure Monitor cannot send otherwise.')
param sharedAccess bool

var dataReceiver = 'a638d3c7-ab3a-418d-83e6-5f17a39d4fde'

resource hubs 'Microsoft.EventHub/namespaces@2026-01-01' = {
  name: name
  location: location
  tags: tags
  sku: { name: 'Standard', tier: 'Standard', capacity: 1 }
  properties: {
    publicNetworkAccess: publicNetworkAccess
    disableLocalAuth: !sharedAccess
    minimumTlsVersion: '1.2'
  }

  // Diagnostic settings of Azure Monitor send as a trusted service.
  resource network 'networkRuleSets' = if (publicNetworkAccess == 'Disabled') {
    name: 'default'
    properties: {
      publicNetworkAccess: publicNetworkAccess
      defaultAction: 'Deny'
      trustedServiceAccessEnabled: true
    }
  }

  resource metrics 'eventhubs' = {
    name: hubName
    properties: {
      partitionCount: 4
      retentionDescription: { cleanupPolicy: 'Delete', retentionTimeInHours: 168 }
    }

    resource trigger 'consumergroups' = { name: consumerGroup }
    resource readBack 'consumergroups' = { name: readBackConsumerGroup }
  }
}

resource mayReceive 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(hubs::metrics.id, principalId, dataReceiver)
  scope: hubs::metrics
  properties: {
    principalId: principalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', dataReceiver)
  }
}

output host string = split(split(hubs.properties.serviceBusEndpoint, '/')[2], ':')[0]
