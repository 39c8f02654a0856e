// The two queues of one message per data set and period, and what the app may do in the namespace.
// shared/datasets/entities.py checks the same properties when the app starts.

param namespaceName string
param principalId string
param topic string
param processes bool
param processingQueue string
param workingQueue string
param app string
param tags object
param actionGroupIds string[]

// Counts of messages are a management operation: less than the owner may not read them.
var dataOwner = '090c5cfd-751d-490a-894a-3ce6f1109419'
var dataSender = '69a216fc-b8fb-44d8-bc22-1f3c2cd27a39'
var dataReceiver = '4f6d3b9b-027b-4f4c-9142-0e5a2a2247e0'

resource bus 'Microsoft.ServiceBus/namespaces@2024-01-01' existing = {
  name: namespaceName

  resource watched 'topics' existing = { name: topic }
}

resource working 'Microsoft.ServiceBus/namespaces/queues@2024-01-01' = if (processes) {
  parent: bus
  name: workingQueue
  properties: {
    requiresSession: true
    lockDuration: 'PT5M'
    maxDeliveryCount: 10
    deadLetteringOnMessageExpiration: true
  }
}

resource processing 'Microsoft.ServiceBus/namespaces/queues@2024-01-01' = if (processes) {
  parent: bus
  name: processingQueue
  properties: {
    requiresDuplicateDetection: true
    // The longest there is. Settings that would need a longer one are refused by the app.
    duplicateDetectionHistoryTimeWindow: 'P7D'
    requiresSession: false
    forwardTo: workingQueue
    deadLetteringOnMessageExpiration: true
  }
  dependsOn: [working]
}

resource mayCount 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(bus::watched.id, principalId, dataOwner)
  scope: bus::watched
  properties: {
    principalId: principalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', dataOwner)
  }
}

resource maySend 'Microsoft.Authorization/roleAssignments@2022-04-01' = if (processes) {
  name: guid(processing.id, principalId, dataSender)
  scope: processing
  properties: {
    principalId: principalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', dataSender)
  }
}

resource mayReceive 'Microsoft.Authorization/roleAssignments@2022-04-01' = if (processes) {
  name: guid(working.id, principalId, dataReceiver)
  scope: working
  properties: {
    principalId: principalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', dataReceiver)
  }
}

resource deadLetters 'Microsoft.Insights/metricAlerts@2018-03-01' = if (processes) {
  name: '${app}-dead-letters'
  location: 'global'
  tags: tags
  properties: {
    description: 'Data sets could not be processed: see the dead-letter queue.'
    severity: 2
    enabled: true
    scopes: [bus.id]
    evaluationFrequency: 'PT5M'
    windowSize: 'PT5M'
    criteria: {
      'odata.type': 'Microsoft.Azure.Monitor.SingleResourceMultipleMetricCriteria'
      allOf: [
        {
          criterionType: 'StaticThresholdCriterion'
          name: 'dead letters'
          metricNamespace: 'Microsoft.ServiceBus/namespaces'
          metricName: 'DeadletteredMessages'
          dimensions: [
            { name: 'EntityName', operator: 'Include', values: [processingQueue, workingQueue] }
          ]
          timeAggregation: 'Average'
          operator: 'GreaterThan'
          threshold: 0
        }
      ]
    }
    actions: [for id in actionGroupIds: { actionGroupId: id }]
  }
}

output host string = split(split(bus.properties.serviceBusEndpoint, '/')[2], ':')[0]
