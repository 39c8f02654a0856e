// Routes new telemetry blobs through Event Grid to the queue that telemetry_arrived reads.
// An event that cannot be delivered within a day is stored as a blob.

param name string
param location string
param tags object
param telemetryAccount string
param appAccount string
param telemetryQueue string
param undeliveredContainer string

var roles = {
  'Storage Queue Data Message Sender': 'c6a89b2d-59bc-44d0-9896-0f6e12d7b80a'
  'Storage Blob Data Contributor': 'ba92f5b4-2d11-453d-a403-e96b0029c9fe'
}

resource telemetry 'Microsoft.Storage/storageAccounts@2025-01-01' existing = {
  name: telemetryAccount
}

resource app 'Microsoft.Storage/storageAccounts@2025-01-01' existing = {
  name: appAccount

  resource queues 'queueServices' existing = {
    name: 'default'

    resource arrivals 'queues' existing = { name: telemetryQueue }
  }

  resource blobs 'blobServices' existing = {
    name: 'default'

    resource undelivered 'containers' existing = { name: undeliveredContainer }
  }
}

resource events 'Microsoft.EventGrid/systemTopics@2025-02-15' = {
  name: '${name}-telemetry'
  location: location
  tags: tags
  identity: { type: 'SystemAssigned' }
  properties: {
    source: telemetry.id
    topicType: 'Microsoft.Storage.StorageAccounts'
  }
}

resource mayQueue 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(app::queues::arrivals.id, events.id, 'send')
  scope: app::queues::arrivals
  properties: {
    principalId: events.identity.principalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: subscriptionResourceId(
      'Microsoft.Authorization/roleDefinitions',
      roles['Storage Queue Data Message Sender']
    )
  }
}

resource mayKeep 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(app::blobs::undelivered.id, events.id, 'keep')
  scope: app::blobs::undelivered
  properties: {
    principalId: events.identity.principalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: subscriptionResourceId(
      'Microsoft.Authorization/roleDefinitions',
      roles['Storage Blob Data Contributor']
    )
  }
}

resource blobCreated 'Microsoft.EventGrid/systemTopics/eventSubscriptions@2025-02-15' = {
  parent: events
  name: 'blob-created'
  properties: {
    eventDeliverySchema: 'CloudEventSchemaV1_0'
    filter: {
      includedEventTypes: ['Microsoft.Storage.BlobCreated']
      subjectBeginsWith: '/blobServices/default/containers/insights-logs-app'
    }
    deliveryWithResourceIdentity: {
      identity: { type: 'SystemAssigned' }
      destination: {
        endpointType: 'StorageQueue'
        properties: {
          resourceId: app.id
          queueName: telemetryQueue
          queueMessageTimeToLiveInSeconds: -1
        }
      }
    }
    deadLetterWithResourceIdentity: {
      identity: { type: 'SystemAssigned' }
      deadLetterDestination: {
        endpointType: 'StorageBlob'
        properties: {
          resourceId: app.id
          blobContainerName: undeliveredContainer
        }
      }
    }
    retryPolicy: {
      maxDeliveryAttempts: 30
      eventTimeToLiveInMinutes: 1440
    }
  }
  dependsOn: [mayQueue, mayKeep]
}
