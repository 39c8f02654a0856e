// Two accounts: the app's own, and one for telemetry, which the app's identity can read only where
// it starts the nightly job.

param appAccount string
param telemetryAccount string
param sku string
param location string
param tags object
param principalId string
param telemetryQueue string

@description('The nightly job is started by the app, which looks what has come in.')
param readsTelemetry bool

var packageContainerName = 'app-package'
var undeliveredContainerName = 'undelivered-events'
var queueNames = [
  'metrics'
  'metrics-poison'
  'actions'
  'actions-poison'
  telemetryQueue
  '${telemetryQueue}-poison'
]
var tableNames = [
  'Scaling'
  'Claims'
  'Ingestion'
  'Ownership'
  'Breaker'
  'Notifications', 'Trends'
  'TrendRuns'
]

// The host keeps its locks and keys in blobs; its documentation asks for the owner of blob data.
var roles = {
  'Storage Blob Data Owner': 'b7e6dc6d-f1e8-4753-8033-0f276bb0955b'
  'Storage Queue Data Contributor': '974c5e8b-45b9-4653-ba55-5f855dd0fb88'
  'Storage Table Data Contributor': '0a9a7e1f-b9d0-4cc4-a60d-0319b160aaa3'
}

var locked = {
  allowSharedKeyAccess: false
  allowBlobPublicAccess: false
  allowCrossTenantReplication: false
  defaultToOAuthAuthentication: true
  minimumTlsVersion: 'TLS1_2'
  supportsHttpsTrafficOnly: true
}

resource app 'Microsoft.Storage/storageAccounts@2023-05-01' = {
  name: appAccount
  location: location
  tags: tags
  sku: { name: sku }
  kind: 'StorageV2'
  properties: locked

  resource blobs 'blobServices' = {
    name: 'default'

    resource package 'containers' = { name: packageContainerName }
    resource undelivered 'containers' = { name: undeliveredContainerName }
  }

  resource queues 'queueServices' = {
    name: 'default'

    resource each 'queues' = [for queue in queueNames: { name: queue }]
  }

  resource tables 'tableServices' = {
    name: 'default'

    resource each 'tables' = [for table in tableNames: { name: table }]
  }
}

resource telemetry 'Microsoft.Storage/storageAccounts@2023-05-01' = {
  name: telemetryAccount
  location: location
  tags: tags
  sku: { name: sku }
  kind: 'StorageV2'
  properties: locked
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
output telemetryAccountName string = telemetry.name
output telemetryAccountId string = telemetry.id
