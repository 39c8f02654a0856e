// Sends logs that Application Insights does not have to the workspace: those of the Functions host
// itself, and who wrote to the storage account of the app.

param appName string
param appAccount string
param workspaceId string

var writes = ['StorageWrite', 'StorageDelete']

resource app 'Microsoft.Web/sites@2025-03-01' existing = { name: appName }

resource storage 'Microsoft.Storage/storageAccounts@2025-01-01' existing = {
  name: appAccount

  resource blobs 'blobServices' existing = { name: 'default' }
  resource queues 'queueServices' existing = { name: 'default' }
  resource tables 'tableServices' existing = { name: 'default' }
}

resource host 'Microsoft.Insights/diagnosticSettings@2021-05-01-preview' = {
  name: 'logs-to-workspace'
  scope: app
  properties: {
    workspaceId: workspaceId
    logs: [{ category: 'FunctionAppLogs', enabled: true }]
  }
}

resource blobWrites 'Microsoft.Insights/diagnosticSettings@2021-05-01-preview' = {
  name: 'logs-to-workspace'
  scope: storage::blobs
  properties: {
    workspaceId: workspaceId
    logs: [for category in writes: { category: category, enabled: true }]
  }
}

resource queueWrites 'Microsoft.Insights/diagnosticSettings@2021-05-01-preview' = {
  name: 'logs-to-workspace'
  scope: storage::queues
  properties: {
    workspaceId: workspaceId
    logs: [for category in writes: { category: category, enabled: true }]
  }
}

resource tableWrites 'Microsoft.Insights/diagnosticSettings@2021-05-01-preview' = {
  name: 'logs-to-workspace'
  scope: storage::tables
  properties: {
    workspaceId: workspaceId
    logs: [for category in writes: { category: category, enabled: true }]
  }
}
