// The app's own storage account, and one for telemetry if the app uses it. The app's identity can read
// telemetry only if the app starts the nightly job.

param appAccount string
param telemetryAccount string
param sku string
param publicNetworkAccess string
param location string
param tags object
param principalId string

@description('Object id of whoever may read the tables. Empty: nobody.')
param readerId string
param telemetryQueue string

@description('Whether the app schedules a message for each data set that arrives.')
param processes bool

@description('Whether there is an account for telemetry.')
param keepsTelemetry bool

@description('Whether the app starts the nightly job, and therefore lists telemetry.')
param readsTelemetry bool

var packageContainerName = 'app-package'
var undeliveredContainerName = 'undelivered-events'
var queueNames = [
  'metrics'
  'metrics-poison'
  'samples'
  'samples-poison'
  'actions'
  'actions-poison'
]
var arrivalQueueNames = [
  telemetryQueue
  '${telemetryQueue}-poison'
]
var tableNames = [
  'Scaling'
  'Claims'
  'Ingestion'
  'Ownership'
  'Breaker'
  'Notifications'
  'Trends'
  'TrendRuns'
]

// The host keeps locks and keys in blobs. Its documentation requires the owner role for blob data.
var roles = {
  'Storage Blob Data Owner': 'b7e6dc6d-f1e8-4753-8033-0f276bb0955b'
  'Storage Queue Data Contributor': '974c5e8b-45b9-4653-ba55-5f855dd0fb88'
  'Storage Table Data Contributor': '0a9a7e1f-b9d0-4cc4-a60d-0319b160aaa3'
}

// No request without an identity that has a role is accepted, whatever the network. Event Grid and
// diagnostic settings deliver as trusted services.
var locked = {
  publicNetworkAccess: publicNetworkAccess
  networkAcls: {
    defaultAction: publicNetworkAccess == 'Enabled' ? 'Allow' : 'Deny'
    bypass: 'AzureServices'
  }
  allowSharedKeyAccess: false
  allowBlobPublicAccess: false
  allowCrossTenantReplication: false
  defaultToOAuthAuthentication: true
  minimumTlsVersion: 'TLS1_2'
  supportsHttpsTrafficOnly: true
}

// Deleted packages and telemetry can be restored for a week. Queues and tables have no soft delete.
var softDelete = {
  deleteRetentionPolicy: { enabled: true, days: 7 }
  containerDeleteRetentionPolicy: { enabled: true, days: 7 }
}

resource app 'Microsoft.Storage/storageAccounts@2025-01-01' = {
  name: appAccount
  location: location
  tags: tags
  sku: { name: sku }
  kind: 'StorageV2'
  properties: locked

  resource blobs 'blobServices' = {
    name: 'default'
    properties: softDelete

    resource package 'containers' = { name: packageContainerName }
    resource undelivered 'containers' = if (processes) { name: undeliveredContainerName }
  }

  resource queues 'queueServices' = {
    name: 'default'

    resource each 'queues' = [for queue in queueNames: { name: queue }]
    resource arrivals 'queues' = [for queue in arrivalQueueNames: if (processes) { name: queue }]
  }

  resource tables 'tableServices' = {
    name: 'default'

    resource each 'tables' = [for table in tableNames: { name: table }]
  }
}

resource telemetry 'Microsoft.Storage/storageAccounts@2025-01-01' = if (keepsTelemetry) {
  name: telemetryAccount
  location: location
  tags: tags
  sku: { name: sku }
  kind: 'StorageV2'
  properties: locked

  resource blobs 'blobServices' = {
    name: 'default'
    properties: softDelete
  }
}

resource assignments 'Microsoft.Authorization/roleAssignments@2022-04-01' = [
  for role in items(roles): {
    name: guid(app.id, principalId, role.value)
    scope: app
    properties: {
      principalId: principalId
      principalType: 'ServicePrincipal'
      roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', role.value)
    }
  }
]

var tableReader = '76199698-9eea-4c19-bc75-cec21354c6b6'

// Azure finds out whether it is a user, a group or a service principal.
resource mayReadTables 'Microsoft.Authorization/roleAssignments@2022-04-01' = if (!empty(readerId)) {
  name: guid(app.id, readerId, tableReader)
  scope: app
  properties: {
    principalId: readerId
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', tableReader)
  }
}

var blobReader = '2a2b9908-6ea1-4ae2-8e65-a410df84e7d1'

resource mayReadTelemetry 'Microsoft.Authorization/roleAssignments@2022-04-01' = if (readsTelemetry) {
  name: guid(telemetry.id, principalId, blobReader)
  scope: telemetry
  properties: {
    principalId: principalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', blobReader)
  }
}

output appAccountName string = app.name
output packageContainer string = packageContainerName
output undeliveredContainer string = undeliveredContainerName
output telemetryAccountName string = keepsTelemetry ? telemetry.name : ''
output telemetryAccountId string = keepsTelemetry ? telemetry.id : ''
